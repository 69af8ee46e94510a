import copy
import resource

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-mean-teacher",
    "row": None,
    "title": "the running class prior is updated from the teacher's probabilities with their graph, so every step's teacher activations stay alive",
    "family": "cnn",
    "kind": "performance",
    "contracts": [],
    "root_causes": ["memory-leak"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def blobs(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 5, (n,), generator=g)
    proto = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(99))
    base = F.interpolate(proto, size=16, mode="bilinear", align_corners=False)
    x = base[y] * (0.7 + 0.6 * torch.rand(n, 1, 1, 1, generator=g)) + 0.8 * torch.randn(n, 1, 16, 16, generator=g)
    return x, y


def small_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, padding=1, stride=2),
        nn.GroupNorm(4, 24),
        nn.ReLU(),
        nn.Conv2d(24, 32, 3, padding=1, stride=2),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 5),
    )


class MeanTeacher:
    def __init__(self, lr=2e-3, decay=0.98):
        self.student = small_cnn()
        self.teacher = copy.deepcopy(self.student)
        self.decay = decay
        self.prior = torch.full((5,), 0.2)
        self.opt = torch.optim.Adam(self.student.parameters(), lr=lr)

    @torch.no_grad()
    def update_teacher(self):
        for t, s in zip(self.teacher.parameters(), self.student.parameters()):
            t.lerp_(s, 1 - self.decay)

    def pseudo_targets(self, x):
        probs = self.teacher(x).softmax(1)
        self.prior = 0.95 * self.prior + 0.05 * probs.mean(0)
        aligned = probs / self.prior
        return (aligned / aligned.sum(1, keepdim=True)).detach()

    def train_step(self, lab, unlab, weight):
        x, y = lab
        sup = F.cross_entropy(self.student(x), y)
        target = self.pseudo_targets(unlab + 0.1 * torch.randn_like(unlab))
        logp = F.log_softmax(self.student(unlab + 0.1 * torch.randn_like(unlab)), 1)
        cons = F.kl_div(logp, target, reduction="batchmean")
        loss = sup + weight * cons
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.update_teacher()
        return loss.item(), sup.item(), cons.item()


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    xl, yl = blobs(400, 1)
    xu, _ = blobs(3000, 2)
    xt, yt = blobs(500, 3)
    mt = MeanTeacher()
    for step in range(240):
        i, j = torch.randint(0, len(xl), (32,)), torch.randint(0, len(xu), (48,))
        loss, sup, cons = mt.train_step((xl[i], yl[i]), xu[j], weight=min(1.0, step / 100))
        if (step + 1) % 40 == 0:
            mt.teacher.eval()
            with torch.no_grad():
                acc = (mt.teacher(xt).argmax(1) == yt).float().mean().item()
            mt.teacher.train()
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(f"{step + 1}: loss {loss:.3f} sup {sup:.3f} cons {cons:.3f} teacher acc {acc:.3f} rss {rss} MiB")


if __name__ == "__main__":
    main()
