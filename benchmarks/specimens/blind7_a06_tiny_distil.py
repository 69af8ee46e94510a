import torch, torch.nn as nn, torch.nn.functional as F

TRUTH = {
    "id": "blind7-a06-tiny-distil",
    "row": None,
    "title": "student optimizer uses weight_decay 0.2 with SGD (an AdamW-style value): the weights shrink towards zero and the loss stalls",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["weight-decay-too-strong"],
    "bricks": [],
    "first_step": 150,
    "needs": "cpu",
    "crashes": False,
}

torch.manual_seed(0)
D, C, T = 40, 12, 3.0
centres = torch.randn(C * 3, D)


def sample(n):
    k = torch.randint(0, C * 3, (n,))
    return centres[k] + 0.9 * torch.randn(n, D), k % C


teacher = nn.Sequential(nn.Linear(D, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, C))
opt_t = torch.optim.Adam(teacher.parameters(), 1e-3)
for i in range(150):
    x, y = sample(128)
    loss = F.cross_entropy(teacher(x), y)
    opt_t.zero_grad(); loss.backward(); opt_t.step()
print("teacher loss", loss.item())
teacher.eval().requires_grad_(False)

student = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, C))
opt = torch.optim.SGD(student.parameters(), lr=0.08, momentum=0.9, weight_decay=0.2, nesterov=True)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=300)
for i in range(300):
    x, y = sample(128)
    with torch.no_grad():
        soft = F.softmax(teacher(x) / T, -1)
    out = student(x)
    kd = F.kl_div(F.log_softmax(out / T, -1), soft, reduction="batchmean") * T * T
    loss = 0.7 * kd + 0.3 * F.cross_entropy(out, y)
    opt.zero_grad(); loss.backward(); opt.step(); sched.step()
    if i % 30 == 0:
        print(i, f"{loss.item():.4f}")
student.eval()
with torch.no_grad():
    x, y = sample(4000)
    print("student acc", (student(x).argmax(1) == y).float().mean().item(),
          "teacher acc", (teacher(x).argmax(1) == y).float().mean().item(),
          "|w|", sum(p.pow(2).sum() for p in student.parameters()).sqrt().item())
