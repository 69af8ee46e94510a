import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-ctl_distill_points",
    "title": "Healthy knowledge distillation: a wide teacher is trained, then frozen, and a small student learns from its softened outputs and the labels.",
    "family": "mlp",
    "needs": "cpu",
    "trap": "Probabilities are the target of the loss and it floors above zero (the teacher's entropy), the teacher is in eval mode and frozen, teacher features are standardised raw inputs of mixed scale inside the model.",
}


class Scaler(nn.Module):
    def __init__(self, x):
        super().__init__()
        self.register_buffer("mu", x.mean(0))
        self.register_buffer("sd", x.std(0) + 1e-6)

    def forward(self, x):
        return (x - self.mu) / self.sd


class MLP(nn.Module):
    def __init__(self, scaler, d, widths, classes, p):
        super().__init__()
        self.scaler = scaler
        layers = []
        for w in widths:
            layers += [nn.Linear(d, w), nn.GELU(), nn.Dropout(p)]
            d = w
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        return self.head(self.body(self.scaler(x)))


def customers(n, seed, classes=7):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 12))
    w = np.random.default_rng(8)
    h = np.tanh(z @ w.normal(size=(12, 24)) / 2.5)
    y = (h @ w.normal(size=(24, classes)) + 0.4 * rng.normal(size=(n, classes))).argmax(1)
    scale, shift = np.logspace(-1, 1, 12), np.linspace(-3, 3, 12)
    return torch.tensor(z * scale + shift, dtype=torch.float32), torch.from_numpy(y)


def loop(model, opt, x, y, steps, batch, seed, objective, tag):
    g = torch.Generator().manual_seed(seed)
    model.train()
    for s in range(steps):
        i = torch.randint(0, len(x), (batch,), generator=g)
        loss = objective(model(x[i]), x[i], y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 30 == 0 or s == steps - 1:
            print(f"[{tag}] step {s} loss {loss.item():.4f}")
    model.eval()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--temperature", type=float, default=3.0)
    p.add_argument("--alpha", type=float, default=0.7)
    p.add_argument("--teacher-steps", type=int, default=180)
    p.add_argument("--student-steps", type=int, default=200)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = customers(6000, 0)
    xv, yv = customers(1000, 1)
    scaler, T = Scaler(x), a.temperature
    teacher = MLP(scaler, 12, [192, 192], 7, 0.1)
    loop(teacher, torch.optim.AdamW(teacher.parameters(), lr=2e-3), x, y, a.teacher_steps, 128, 0,
         lambda o, xb, yb: F.cross_entropy(o, yb), "teacher")
    teacher.requires_grad_(False)
    student = MLP(scaler, 12, [32, 32], 7, 0.0)

    def distil(o, xb, yb):
        with torch.no_grad():
            soft = F.softmax(teacher(xb) / T, -1)
        kd = -(soft * F.log_softmax(o / T, -1)).sum(-1).mean() * T * T
        return a.alpha * kd / (T * T) + (1 - a.alpha) * F.cross_entropy(o, yb)

    loop(student, torch.optim.AdamW(student.parameters(), lr=5e-3), x, y, a.student_steps, 128, 1, distil, "student")
    with torch.no_grad():
        for n, m in (("teacher", teacher), ("student", student)):
            print(n, "accuracy", (m(xv).argmax(1) == yv).float().mean().item())


if __name__ == "__main__":
    main()
