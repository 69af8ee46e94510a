import os
import math
import tempfile
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-ctl_resume_cnn",
    "title": "A healthy small residual CNN that is stopped twice and fully resumed (weights, optimizer, schedule, generator), with early stopping.",
    "family": "cnn",
    "needs": "cpu",
    "trap": "Model, optimizer and scheduler are built anew for each slice and the older ones dropped, the learning rate does not start at step 0 of a slice, the model switches between train and eval.",
}

CFG = {"classes": 6, "width": 16, "batch": 40, "lr": 0.08, "momentum": 0.9, "wd": 5e-4, "total": 150, "slices": [50, 100, 150], "seed": 6}


def textures(n, seed, classes, s=16):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:s, :s]
    y = rng.integers(0, classes, n)
    ang = y[:, None, None] * np.pi / classes
    x = np.sin(1.1 * (np.cos(ang) * xx + np.sin(ang) * yy) + rng.uniform(0, 6.28, (n, 1, 1))) + 1.6 * rng.normal(size=(n, s, s))
    return torch.tensor(x[:, None], dtype=torch.float32), torch.from_numpy(y)


class Res(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(w, w, 3, 1, 1, bias=False), nn.Conv2d(w, w, 3, 1, 1, bias=False)
        self.b1, self.b2 = nn.BatchNorm2d(w), nn.BatchNorm2d(w)

    def forward(self, x):
        return F.relu(x + self.b2(self.c2(F.relu(self.b1(self.c1(x))))))


class Net(nn.Module):
    def __init__(self, w, classes):
        super().__init__()
        self.stem = nn.Conv2d(1, w, 3, 2, 1)
        self.blocks = nn.Sequential(Res(w), Res(w))
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(w, classes)

    def forward(self, x):
        return self.fc(self.drop(self.blocks(F.relu(self.stem(x))).mean((2, 3))))


def build(c):
    model = Net(c["width"], c["classes"])
    opt = torch.optim.SGD(model.parameters(), lr=c["lr"], momentum=c["momentum"], weight_decay=c["wd"], nesterov=True)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1, (s + 1) / 10) * 0.5 * (1 + math.cos(math.pi * min(s, c["total"]) / c["total"])))
    return model, opt, sched


def evaluate(model, x, y):
    was = model.training
    model.eval()
    with torch.no_grad():
        out = model(x)
    model.train(was)
    return F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


def run_slice(c, until, path, data, val):
    torch.manual_seed(c["seed"])
    model, opt, sched = build(c)
    gen, step, best, bad = torch.Generator().manual_seed(c["seed"]), 0, 1e9, 0
    if os.path.exists(path):
        ck = torch.load(path, weights_only=True)
        model.load_state_dict(ck["model"])
        opt.load_state_dict(ck["opt"])
        sched.load_state_dict(ck["sched"])
        gen.set_state(ck["gen"])
        step, best, bad = ck["step"], ck["best"], ck["bad"]
    x, y = data
    model.train()
    while step < until and bad < 8:
        i = torch.randint(0, len(x), (c["batch"],), generator=gen)
        loss = F.cross_entropy(model(x[i]), y[i])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        step += 1
        if step % 10 == 0:
            vl, acc = evaluate(model, *val)
            best, bad = (vl, 0) if vl < best else (best, bad + 1)
            print(f"step {step} train {loss.item():.4f} val {vl:.4f} acc {acc:.3f}")
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "gen": gen.get_state(),
                "step": step, "best": best, "bad": bad}, path)


def main():
    c = CFG
    torch.set_num_threads(1)
    data, val = textures(2400, 0, c["classes"]), textures(200, 1, c["classes"])
    with tempfile.TemporaryDirectory() as tmp:
        for until in c["slices"]:
            run_slice(c, until, os.path.join(tmp, "state.pt"), data, val)


if __name__ == "__main__":
    main()
