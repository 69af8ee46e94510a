"""Regression of a smooth field; the run is split in two parts that share a checkpoint file."""
import os
from dataclasses import asdict, dataclass
import torch
from torch import nn

TRUTH = {
    "id": "blind-two-part-run",
    "row": 35,
    "title": "the checkpoint stores the optimizer under 'optimizer' but the loader looks for 'optim' and silently goes on with fresh moments",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["resume-state-lost"],
    "bricks": [],
    "first_step": 250,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Cfg:
    width: int = 128
    depth: int = 4
    lr: float = 4e-3
    batch: int = 128
    part: int = 250
    path: str = "field.ckpt"


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(3.0 * x)


def build(c):
    layers, d = [], 2
    for _ in range(c.depth):
        layers += [nn.Linear(d, c.width), Sine()]
        d = c.width
    return nn.Sequential(*layers, nn.Linear(d, 1))


def field(xy):
    x, y = xy[:, :1], xy[:, 1:]
    return torch.sin(2.5 * x) * torch.cos(2 * y) + 0.5 * torch.exp(-4 * (x * x + y * y))


def save(c, model, opt, sched, step, gen):
    torch.save({"cfg": asdict(c), "model": model.state_dict(), "optimizer": opt.state_dict(),
                "sched": sched.state_dict(), "step": step, "gen": gen.get_state()}, c.path)


def load(c, model, opt, sched, gen):
    ck = torch.load(c.path)
    model.load_state_dict(ck["model"])
    if "optim" in ck:
        opt.load_state_dict(ck["optim"])
    sched.load_state_dict(ck["sched"])
    for group, lr in zip(opt.param_groups, sched.get_last_lr()):
        group["lr"] = lr
    gen.set_state(ck["gen"])
    return ck["step"]


def part(c, resume):
    torch.manual_seed(0)
    model = build(c)
    opt = torch.optim.Adam(model.parameters(), lr=c.lr, betas=(0.9, 0.999))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 50) * max(0.0, 1 - s / (2 * c.part)))
    gen = torch.Generator().manual_seed(3)
    step = load(c, model, opt, sched, gen) if resume else 0
    stop = step + c.part
    while step < stop:
        xy = torch.rand(c.batch, 2, generator=gen) * 2 - 1
        loss = nn.functional.mse_loss(model(xy), field(xy))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 25 == 0 or (resume and step - stop + c.part < 10):
            print(f"{step:4d} {loss.item():.6f}")
        step += 1
    save(c, model, opt, sched, step, gen)


cfg = Cfg()
part(cfg, resume=False)
print("-- second part --")
part(cfg, resume=True)
os.remove(cfg.path)
