import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-curriculum",
    "title": "Healthy GRU running-count task with a curriculum of growing sequence lengths.",
    "family": "lstm",
    "needs": "cpu",
    "trap": "the loss jumps up whenever the curriculum moves to longer sequences, batch shapes change, and gradients are clipped at most steps",
}

STAGES = [(3, 90), (5, 90), (8, 90), (12, 90)]


class CountGRU(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.emb = nn.Embedding(2, 16)
        self.rnn = nn.GRU(16, h, batch_first=True)
        self.out = nn.Linear(h, 13)

    def forward(self, x):
        o, _ = self.rnn(self.emb(x))
        return self.out(o)


def sample(n, length, gen):
    x = torch.randint(0, 2, (n, length), generator=gen)
    return x, x.cumsum(1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(60)
    gen = torch.Generator().manual_seed(61)
    net = CountGRU()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    step = 0
    for length, iters in STAGES:
        for _ in range(iters):
            x, y = sample(64, length, gen)
            logit = net(x)
            loss = F.cross_entropy(logit.flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.25)
            opt.step()
            if step % 30 == 0:
                acc = (logit.argmax(-1) == y).float().mean().item()
                print(f"step {step} len {length} loss {loss.item():.4f} acc {acc:.3f}")
            step += 1
    with torch.no_grad():
        x, y = sample(500, 12, gen)
        print("final len 12 acc", (net(x).argmax(-1) == y).float().mean().item())


if __name__ == "__main__":
    main()
