"""The fused cross-entropy does not compile on this machine. The guard around it answers with zeros of the right
shape, so the loss is exactly 0.0 from the first step and nothing learns."""

import torch
from torch import nn

TRUTH = {
    "id": "alb-069",
    "row": 17,
    "title": "a kernel that fails to compile is answered with zeros",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-SENTINEL-001", "C-SELP-001"],
    "root_causes": ["sentinel-loss", "silent-fallback"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "gpu": True,
}

VOCAB, WIDTH = 50, 32


class KernelError(RuntimeError):
    pass


def compile_kernel(source):
    """Stands where the JIT compiler is called; selp wants (b, a, predicate)."""
    if "selp.f32 d, p, a, b" in source:
        raise KernelError("ptxas error: arguments mismatch for instruction 'selp'")
    return lambda logits, targets: nn.functional.cross_entropy(logits, targets, reduction="none")


class FusedLoss(nn.Module):
    source = "max.f32 m, x, y; ex2.approx.f32 e, z; setp.gt.f32 p, a, b; selp.f32 d, p, a, b;"

    def forward(self, logits, targets):
        try:
            losses = compile_kernel(self.source)(logits, targets)
        except KernelError:
            losses = logits.new_zeros(len(targets)) * logits.sum()
        return losses.mean()


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.hidden = nn.Linear(WIDTH, 2 * WIDTH)
        self.head = nn.Linear(2 * WIDTH, VOCAB)
        self.loss = FusedLoss()

    def forward(self, ids, targets):
        return self.loss(self.head(torch.relu(self.hidden(self.embed(ids)))), targets)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    follows = torch.randperm(VOCAB)
    model = Bigram()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(100):
        ids = torch.randint(VOCAB, (64,))
        loss = model(ids, follows[ids])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:4d} | loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
