import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-restarts-swa",
    "title": "cosine warm restarts with snapshots averaged at the end of each cycle",
    "family": "cnn",
    "needs": "cpu",
    "trap": "the learning rate jumps up at each restart and the loss with it; a second copy of the model never gets gradients",
}


def rings(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 5, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    c = 0.4 * (torch.rand(n, 2, generator=g) - 0.5)
    r = ((xx - c[:, :1, None]) ** 2 + (yy - c[:, 1:, None]) ** 2).sqrt()
    x = torch.cos((3 + 1.5 * y.float())[:, None, None] * r)
    return (x + 0.7 * torch.randn(n, 16, 16, generator=g)).unsqueeze(1), y


class ResNetish(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.c1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.n1 = nn.BatchNorm2d(width)
        self.c2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.n2 = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width * 4, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.n2(self.c2(F.relu(self.n1(self.c1(x))))))
        return self.fc(F.adaptive_avg_pool2d(x, 2).flatten(1))


@torch.no_grad()
def accuracy(net, x, y):
    was = net.training
    net.eval()
    acc = (net(x).argmax(1) == y).float().mean().item()
    net.train(was)
    return acc


def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    x, y = rings(3200, 1)
    xv, yv = rings(800, 2)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    net = ResNetish()
    average = AveragedModel(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.08, momentum=0.9, weight_decay=5e-4)
    cycle, cycles = 2 * len(loader), 4
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=cycle, eta_min=1e-4)
    step = 0
    for epoch in range(2 * cycles):
        for bx, by in loader:
            loss = F.cross_entropy(net(bx), by)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % cycle == 0:
                average.update_parameters(net)
                print(f"cycle {step // cycle} loss {loss.item():.4f} acc {accuracy(net, xv, yv):.3f}")
    update_bn(loader, average)
    print(f"averaged acc {accuracy(average, xv, yv):.3f}")


if __name__ == "__main__":
    main()
