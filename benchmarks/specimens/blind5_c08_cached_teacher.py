import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind5-c08-cached-teacher",
    "row": None,
    "title": "teacher outputs are cached in the order of a shuffling loader and then paired with the unshuffled inputs: student targets are random",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["labels-random", "labels-misaligned"],
    "bricks": [],
    "first_step": 120,
    "needs": "cpu",
    "crashes": False,
}

torch.manual_seed(33)
CLASSES, LEN, T = 8, 64, 2.0


def waves(n):
    y = torch.randint(0, CLASSES, (n,))
    t = torch.linspace(0, 1, LEN)
    freq = (2 + 2 * (y // 2)).float()[:, None]
    phase = torch.rand(n, 1) * 6.283
    carrier = torch.sin(6.283 * freq * t + phase)
    carrier = torch.where((y % 2 == 1)[:, None], carrier.sign(), carrier * 1.3)
    return (carrier + 0.35 * torch.randn(n, LEN)).unsqueeze(1), y


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        chans = [1, 32, 64, 64]
        self.convs = nn.ModuleList(nn.Conv1d(a, b, 5, stride=2, padding=2) for a, b in zip(chans, chans[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(c) for c in chans[1:])
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x):
        for c, n in zip(self.convs, self.norms):
            x = F.relu(n(c(x)))
        return self.fc(x.mean(-1))


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 12, 7, stride=2, padding=3)
        self.norm1 = nn.GroupNorm(3, 12)
        self.conv2 = nn.Conv1d(12, 24, 5, stride=2, padding=2)
        self.norm2 = nn.GroupNorm(3, 24)
        self.fc = nn.Linear(24, CLASSES)

    def forward(self, x):
        x = F.silu(self.norm1(self.conv1(x)))
        x = F.silu(self.norm2(self.conv2(x)))
        return self.fc(x.amax(-1))


def accuracy(net, x, y):
    net.eval()
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


x_lab, y_lab = waves(1920)
x_test, y_test = waves(600)
teacher = Teacher()
opt = torch.optim.Adam(teacher.parameters(), lr=2e-3)
for epoch in range(4):
    teacher.train()
    for xb, yb in DataLoader(TensorDataset(x_lab, y_lab), batch_size=64, shuffle=True):
        loss = F.cross_entropy(teacher(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"teacher epoch {epoch} loss {loss.item():.3f} acc {accuracy(teacher, x_test, y_test):.3f}")

# unlabelled pool: score it once with the teacher, then train the student from the cache
x_pool, _ = waves(3200)
pool_loader = DataLoader(TensorDataset(x_pool), batch_size=128, shuffle=True)
teacher.eval()
with torch.no_grad():
    cached = torch.cat([teacher(xb) for (xb,) in pool_loader])

student = Student()
opt = torch.optim.AdamW(student.parameters(), lr=4e-3, weight_decay=1e-4)
distill_loader = DataLoader(TensorDataset(x_pool, cached), batch_size=64, shuffle=True, drop_last=True)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=5 * len(distill_loader))
for epoch in range(5):
    student.train()
    total = 0.0
    for xb, tb in distill_loader:
        kd = F.kl_div(F.log_softmax(student(xb) / T, -1), F.log_softmax(tb / T, -1), reduction="batchmean", log_target=True) * T * T
        opt.zero_grad()
        kd.backward()
        opt.step()
        sched.step()
        total += kd.item()
    print(f"student epoch {epoch} kd {total / len(distill_loader):.4f} acc {accuracy(student, x_test, y_test):.3f}")
