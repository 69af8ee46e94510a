import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

TRUTH = {
    "id": "blind4-intents",
    "title": "The classifier head ends in a softmax and its output goes to CrossEntropyLoss, which applies softmax again: small gradients and a loss floor near 1.17.",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["double-softmax", "loss-input-mismatch"],
    "bricks": ["head.3", "head"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

torch.set_num_threads(1)
torch.manual_seed(2026)

VOCAB, CLASSES, PAD = 300, 7, 0


def utterances(n):
    out = []
    keys = torch.arange(1, 1 + CLASSES * 6).view(CLASSES, 6)
    for _ in range(n):
        c = int(torch.randint(0, CLASSES, ()))
        length = int(torch.randint(6, 18, ()))
        w = torch.randint(50, VOCAB, (length,))
        spots = torch.randperm(length)[:2]
        w[spots] = keys[c][torch.randint(0, 6, (2,))]
        out.append((w, c))
    return out


def collate(batch):
    xs, ys = zip(*batch)
    return pad_sequence(xs, batch_first=True, padding_value=PAD), torch.tensor(ys)


class IntentModel(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.score = nn.Linear(d, 1)
        self.head = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, CLASSES), nn.Softmax(dim=-1))

    def forward(self, x):
        pad = x == PAD
        h = self.encoder(self.emb(x), src_key_padding_mask=pad)
        w = self.score(h).squeeze(-1).masked_fill(pad, -1e9).softmax(-1)
        return self.head((w[..., None] * h).sum(1))


train = DataLoader(utterances(1280), batch_size=32, shuffle=True, collate_fn=collate)
valid = DataLoader(utterances(320), batch_size=64, collate_fn=collate)
model = IntentModel()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, epochs=5, steps_per_epoch=len(train))

for epoch in range(5):
    model.train()
    total = 0
    for x, y in train:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        total += loss.item()
    model.eval()
    hit = n = 0
    with torch.no_grad():
        for x, y in valid:
            hit += (model(x).argmax(1) == y).sum().item()
            n += len(y)
    print(f"epoch {epoch}: loss {total / len(train):.4f}  val acc {hit / n:.3f}")
