"""The tokenizer has four special tokens more than the embedding has rows. Everything works until a text holds one of
them; then the lookup is out of range and the run ends with an IndexError."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-out-of-bounds-gpt",
    "row": None,
    "title": "a token id beyond the embedding",
    "family": "gpt",
    "kind": "process",
    "contracts": ["C-PROCESS-001", "C-BUFSIZE-001"],
    "root_causes": ["out-of-bounds"],
    "bricks": ["embed"],
    "first_step": 60,
    "needs": "cpu",
}

LETTERS = "abcdefghijklmnopqrstuvwxyz "
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]


class Tokenizer:
    def __init__(self):
        self.ids = {token: i for i, token in enumerate([*LETTERS, *SPECIAL])}

    def encode(self, text):
        return torch.tensor([self.ids.get(letter, self.ids["<unk>"]) for letter in text])


class Model(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.block = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.block(self.embed(ids), src_mask=mask, is_causal=True))


def texts():
    line = "a journey of a thousand miles begins with a single step "
    for number in range(120):
        yield line if number != 60 else line.replace("thousand", "1000 long")[: len(line)]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = Tokenizer()
    model = Model(vocab=len(LETTERS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, text in enumerate(texts()):
        shift = int(torch.randint(0, 10, ()))
        ids = tokenizer.encode(text[shift:] + text[:shift]).view(4, -1)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
