"""VAE on noisy bar images, trained with an in-house Adam that keeps its moments in two flat buffers."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind7-a13-bars-vae",
    "row": None,
    "title": "the flat moment buffers of the in-house Adam are torch.empty: the first updates use whatever memory held",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["optimizer-state-uninitialised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class FlatAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        self.t = 0

    def _allocate(self, group):
        n = sum(p.numel() for p in group["params"])
        exp_avg, exp_avg_sq = torch.empty(n), torch.empty(n)
        off = 0
        for p in group["params"]:
            self.state[p]["exp_avg"] = exp_avg[off:off + p.numel()].view_as(p)
            self.state[p]["exp_avg_sq"] = exp_avg_sq[off:off + p.numel()].view_as(p)
            off += p.numel()

    @torch.no_grad()
    def step(self, closure=None):
        self.t += 1
        for group in self.param_groups:
            if self.t == 1:
                self._allocate(group)
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m, v = self.state[p]["exp_avg"], self.state[p]["exp_avg_sq"]
                m.mul_(b1).add_(p.grad, alpha=1 - b1)
                v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                denom = (v / (1 - b2 ** self.t)).sqrt().add_(group["eps"])
                p.addcdiv_(m / (1 - b1 ** self.t), denom, value=-group["lr"])


class VAE(nn.Module):
    def __init__(self, side=16, latent=8, hidden=128):
        super().__init__()
        d = side * side
        self.enc = nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.dec = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, d))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def bars(n, side=16):
    img = torch.zeros(n, side, side)
    r = torch.randint(0, side, (n, 2))
    c = torch.randint(0, side, (n,))
    idx = torch.arange(n)
    img[idx, r[:, 0]] = 1
    img[idx, r[:, 1]] = 1
    img[idx, :, c] = 1
    return img.flatten(1)


def elbo(model, x):
    out, mu, logvar = model(x)
    rec = F.binary_cross_entropy_with_logits(out, x, reduction="none").sum(-1).mean()
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1).mean()
    return rec + kl


def main():
    torch.manual_seed(30)
    train = bars(6000)
    pixel_stats = torch.stack([(train - train.mean(0)) @ torch.randn(256, 48) for _ in range(4)])
    print("projected spread", pixel_stats.std().item())
    del pixel_stats
    model = VAE()
    opt = FlatAdam(model.parameters(), lr=1e-3)
    for step in range(400):
        x = train[torch.randint(0, len(train), (128,))]
        loss = elbo(model, x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0 or step < 3:
            print(f"step {step} -elbo {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        print(f"final {elbo(model, bars(1000)).item():.3f}")


if __name__ == "__main__":
    main()
