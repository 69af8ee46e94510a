"""Translation of number words with an encoder and a decoder, teacher forcing, dropout and the Noam schedule."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "sequence-to-sequence",
    "title": "encoder and decoder, teacher forcing, inverse square root schedule",
    "family": "gpt",
    "trap": "the learning rate rises for a third of the run; the loss has label smoothing and so a floor",
    "needs": "cpu",
}
TOKENS, START, WIDTH = 14, 0, 32


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(TOKENS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.place = nn.Parameter(0.1 * torch.randn(10, WIDTH))
        self.model = nn.Transformer(WIDTH, 4, 1, 1, 64, dropout=0.05, batch_first=True, norm_first=False)
        self.out = nn.Linear(WIDTH, TOKENS)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        source = self.source(source) + self.place[: source.shape[1]]
        target = self.target(target) + self.place[: target.shape[1]]
        return self.out(self.model(source, target, tgt_mask=mask, tgt_is_causal=True))


def pairs(count, length=5):
    """The target is the source with every token moved by three."""
    source = torch.randint(1, TOKENS, (count, length))
    return source, (source + 2) % (TOKENS - 1) + 1


def noam(step, warmup=50):
    return min((step + 1) ** -0.5, (step + 1) * warmup**-1.5) * warmup**0.5


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3, betas=(0.9, 0.98), eps=1e-9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, noam)
    for step in range(150):
        source, target = pairs(32)
        shifted = torch.cat([torch.full((32, 1), START), target[:, :-1]], dim=1)
        loss = F.cross_entropy(model(source, shifted).flatten(0, 1), target.flatten(), label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {schedule.get_last_lr()[0]:.5f}")
