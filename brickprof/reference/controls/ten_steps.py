"""Ten updates of a small decoder with `--max-steps 10`, to see that everything works."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "ten-steps",
    "title": "ten updates with a limit from the command line",
    "family": "gpt",
    "trap": "the run ends long before the schedule does",
    "needs": "cpu",
    "args": ["--max-steps", "10"],
}


class Decoder(nn.Module):
    def __init__(self, vocabulary, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Decoder(12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2000)
    for step in range(args.max_steps):
        ids = (torch.randint(0, 12, (8, 1)) + torch.arange(11)) % 12
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
