from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {"id": "blind5-c34-distil-restarts", "title": "distillation with label smoothing, warm restarts and an EMA copy that is evaluated", "family": "mlp",
           "needs": "cpu", "trap": "learning rate jumps up at restarts with a bump in the loss, loss floors above zero from smoothing, frozen teacher in eval"}


@dataclass
class Cfg:
    d: int = 30
    classes: int = 7
    teacher_epochs: int = 3
    cycles: list = field(default_factory=lambda: [40, 80, 160])
    batch: int = 64
    temperature: float = 3.0
    alpha: float = 0.7
    seed: int = 77


def blobs(cfg, n, seed):
    g = torch.Generator().manual_seed(1234)
    w = torch.randn(cfg.d, 20, generator=g) / cfg.d ** 0.5
    v = torch.randn(20, cfg.classes, generator=g)
    x = torch.randn(n, cfg.d, generator=torch.Generator().manual_seed(seed))
    return x, (torch.tanh(1.5 * x @ w) @ v).argmax(1)


def mlp(d, width, depth, classes, p=0.0):
    layers, last = [], d
    for _ in range(depth):
        layers += [nn.Linear(last, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(p)]
        last = width
    return nn.Sequential(*layers, nn.Linear(last, classes))


@torch.no_grad()
def acc(net, x, y):
    was = net.training
    net.eval()
    a = (net(x).argmax(1) == y).float().mean().item()
    net.train(was)
    return a


def main():
    cfg = Cfg()
    torch.manual_seed(cfg.seed)
    x, y = blobs(cfg, 8000, 1)
    xv, yv = blobs(cfg, 1500, 2)
    loader = DataLoader(TensorDataset(x, y), cfg.batch, shuffle=True, drop_last=True)

    teacher = mlp(cfg.d, 256, 2, cfg.classes, 0.1)
    opt = torch.optim.AdamW(teacher.parameters(), lr=2e-3)
    for _ in range(cfg.teacher_epochs):
        for xb, yb in loader:
            opt.zero_grad()
            F.cross_entropy(teacher(xb), yb).backward()
            opt.step()
    teacher.eval().requires_grad_(False)
    print(f"teacher acc {acc(teacher, xv, yv):.3f}")

    student = mlp(cfg.d, 96, 2, cfg.classes)
    ema = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.97), use_buffers=True)
    opt = torch.optim.SGD(student.parameters(), lr=0.08, momentum=0.9, nesterov=True, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=cfg.cycles[0], T_mult=2)
    total, step, T = sum(cfg.cycles), 0, cfg.temperature
    while step < total:
        for xb, yb in loader:
            with torch.no_grad():
                soft = (teacher(xb) / T).softmax(-1)
            logits = student(xb)
            kd = F.kl_div((logits / T).log_softmax(-1), soft, reduction="batchmean") * T * T
            hard = F.cross_entropy(logits, yb, label_smoothing=0.1)
            loss = cfg.alpha * kd + (1 - cfg.alpha) * hard
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            ema.update_parameters(student)
            if step % 20 == 0:
                print(f"{step:4d} loss {loss.item():.3f} lr {sched.get_last_lr()[0]:.4f} student {acc(student, xv, yv):.3f} ema {acc(ema, xv, yv):.3f}")
            step += 1
            if step == total:
                break
    print(f"final student {acc(student, xv, yv):.3f} ema {acc(ema, xv, yv):.3f}")


main()
