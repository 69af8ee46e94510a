"""A block that adds its branch to the normalised stream instead of the stream itself: the skip runs through the norm,
so its gradient passes the norm's backward in every block and fades on the way down."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-127",
    "row": 42,
    "title": "the skip gradient passes through the norm's backward",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-RESIDUAL-001"],
    "root_causes": ["residual-path-broken", "vanishing-gradients"],
    "bricks": ["embed", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "blocks.4", "blocks"],
    "first_step": 0,
    "needs": "cpu",
}

WIDTH, DEPTH, VOCAB, LENGTH = 32, 20, 24, 8


class NormedSkip(torch.autograd.Function):
    """x + branch, with a hand-written backward."""

    @staticmethod
    def forward(ctx, x, branch):
        ctx.save_for_backward(x)
        return x + branch

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        through = scale * (grad - x * scale.square() * (grad * x).mean(-1, keepdim=True))
        return through, grad


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        nn.init.normal_(self.down.weight, std=0.02)

    def forward(self, x):
        return NormedSkip.apply(x, self.down(F.silu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        nn.init.normal_(self.embed.weight, std=3.0)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


torch.set_num_threads(1)
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
follows = torch.randperm(VOCAB)
for step in range(60):
    ids = torch.randint(VOCAB, (16, LENGTH))
    loss = F.cross_entropy(net(ids).flatten(0, 1), follows[ids].flatten())
    optimizer.zero_grad()
    loss.backward()
    if step % 10 == 0:
        norms = [block.up.weight.grad.norm().item() for block in net.blocks]
        print(f"{step} loss {loss.item():.4f} gradient of the first block {norms[0]:.2e}, of the last {norms[-1]:.2e}")
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
