"""Train a large classifier, then compress it into a small one with soft targets on unlabelled images."""
from types import SimpleNamespace
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind6-d08-compress-net",
    "row": None,
    "title": "validation runs in train mode: dropout and batch statistics are on, and the class-sorted test batches move the running statistics",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["model-left-in-train"],
    "bricks": [],
    "first_step": 49,
    "needs": "cpu",
    "crashes": False,
}

hp = SimpleNamespace(classes=8, size=10, teacher_steps=150, student_steps=200, batch=48, temp=2.0)
protos = torch.randn(hp.classes, 1, hp.size, hp.size, generator=torch.Generator().manual_seed(4))


def draw(n):
    y = torch.randint(0, hp.classes, (n,))
    x = 0.4 * protos[y] + torch.randn(n, 1, hp.size, hp.size)
    return x, y


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 25, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(64, hp.classes)

    def forward(self, x):
        return self.head(self.body(x))


class Student(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
                         nn.Linear(8 * 25, hp.classes))


def accuracy(net):
    hits = 0
    with torch.no_grad():
        for x, y in zip(test_x.split(50), test_y.split(50)):
            hits += (net(x).argmax(1) == y).sum().item()
    return hits / len(test_y)


def fit_teacher():
    net = Teacher()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, hp.teacher_steps)
    for s in range(hp.teacher_steps):
        x, y = draw(hp.batch)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if (s + 1) % 50 == 0:
            print(f"teacher {s + 1} ce {loss.item():.3f} acc {accuracy(net):.3f}")
    return net


def distil(teacher):
    teacher.eval()
    student = Student()
    opt = torch.optim.Adam(student.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, hp.student_steps)
    for s in range(hp.student_steps):
        x, _ = draw(hp.batch)
        with torch.no_grad():
            soft = F.softmax(teacher(x) / hp.temp, dim=1)
        loss = F.kl_div(F.log_softmax(student(x) / hp.temp, dim=1), soft, reduction="batchmean") * hp.temp ** 2
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if (s + 1) % 50 == 0:
            print(f"student {s + 1} kl {loss.item():.3f} acc {accuracy(student):.3f}")
    print(f"final: teacher {accuracy(teacher):.3f} student {accuracy(student):.3f}")


torch.manual_seed(12)
test_x, test_y = draw(600)
by_class = test_y.argsort()                # stored folder by folder
test_x, test_y = test_x[by_class], test_y[by_class]
distil(fit_teacher())
