import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

TRUTH = {
    "id": "blind7-a09-seq-tagger",
    "row": None,
    "title": "collate sorts sentences by length for packing but leaves the tags in the original order",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["labels-misaligned"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

VOCAB, TAGS, PAD_TAG = 120, 7, -100


def sentences(n, seed):
    g = torch.Generator().manual_seed(seed)
    lexicon = torch.randint(0, TAGS, (VOCAB,), generator=torch.Generator().manual_seed(50))
    out = []
    for _ in range(n):
        length = int(torch.randint(10, 22, (), generator=g))
        toks = torch.randint(1, VOCAB, (length,), generator=g)
        base = lexicon[toks]
        prev = torch.cat([torch.zeros(1, dtype=torch.long), base[:-1]])
        tags = torch.where(toks % 5 == 0, (base + prev) % TAGS, base)
        out.append((toks, tags))
    return out


def collate(batch):
    tokens = pad_sequence([b[0] for b in batch], batch_first=True)
    tags = pad_sequence([b[1] for b in batch], batch_first=True, padding_value=PAD_TAG)
    lengths = torch.tensor([len(b[0]) for b in batch])
    lengths, order = lengths.sort(descending=True)
    tokens = tokens[order]
    return tokens, lengths, tags


class Tagger(nn.Module):
    def __init__(self, dim=48, hidden=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(2 * hidden, TAGS)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.emb(tokens), lengths, batch_first=True)
        h, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=tokens.shape[1])
        return self.out(self.drop(h))


def run_epoch(model, loader, loss_fn, opt=None):
    model.train(opt is not None)
    total, hit, count = 0.0, 0, 0
    for tokens, lengths, tags in loader:
        with torch.set_grad_enabled(opt is not None):
            logits = model(tokens, lengths)
            loss = loss_fn(logits.flatten(0, 1), tags.flatten())
        if opt is not None:
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
        mask = tags != PAD_TAG
        total += loss.item() * int(mask.sum())
        hit += int((logits.argmax(-1) == tags)[mask].sum())
        count += int(mask.sum())
    return total / count, hit / count


torch.manual_seed(2)
train = DataLoader(sentences(1600, 0), batch_size=32, shuffle=True, collate_fn=collate)
valid = DataLoader(sentences(320, 1), batch_size=32, collate_fn=collate)
model = Tagger()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
loss_fn = nn.CrossEntropyLoss(ignore_index=PAD_TAG)
for epoch in range(4):
    tr, tr_acc = run_epoch(model, train, loss_fn, opt)
    va, va_acc = run_epoch(model, valid, loss_fn)
    print(f"epoch {epoch}: train {tr:.4f}/{tr_acc:.3f} valid {va:.4f}/{va_acc:.3f}")
