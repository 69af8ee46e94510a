"""Eight micro-batches to a step; the blocks sum their gradients, the embedding is cleared before each backward
because it "has its own optimizer". Its update sees the last micro-batch only, an eighth of what the others see."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "ent-314",
    "row": 49,
    "title": "the embedding's update uses the last micro-batch only",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-GA-001", "C-TIEDOPT-001", "C-GPUTRAIN-002"],
    "root_causes": ["accumulation-discarded"],
    "bricks": ["embed"],
    "first_step": 0,
    "needs": "cpu",
}

VOCAB, WIDTH, LENGTH, MICRO = 32, 32, 10, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.body = nn.GRU(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        hidden = self.norm(self.body(self.embed(ids))[0])
        return hidden @ self.embed.weight.t()


class Trainer:
    def __init__(self):
        self.model = Model()
        self.embed_optimizer = torch.optim.AdamW(self.model.embed.parameters(), lr=2e-3)
        rest = [p for name, p in self.model.named_parameters() if not name.startswith("embed")]
        self.body_optimizer = torch.optim.AdamW(rest, lr=2e-3)

    def micro_step(self, line):
        loss = F.cross_entropy(self.model(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())
        self.embed_optimizer.zero_grad()
        (loss / MICRO).backward()
        return loss.item()

    def step(self, lines):
        losses = [self.micro_step(line) for line in lines]
        self.embed_optimizer.step()
        self.body_optimizer.step()
        self.body_optimizer.zero_grad()
        return sum(losses) / len(losses)


def lines():
    start, stride = torch.randint(VOCAB, (MICRO, 4, 1)), torch.randint(1, 4, (MICRO, 4, 1))
    return (start + stride * torch.arange(LENGTH + 1)) % VOCAB


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trainer = Trainer()
    for step in range(60):
        loss = trainer.step(lines())
        if step % 10 == 0:
            print(f"step {step} loss {loss:.4f}")
