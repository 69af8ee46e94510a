# Image classification with SGDR restarts and stochastic weight averaging.
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-blob-restarts",
    "title": "CNN with SGD, cosine warm restarts (three full cycles), averaged weights and batch-norm update at the end",
    "family": "cnn",
    "needs": "cpu",
    "trap": "learning rate jumps up at each restart and the loss with it; a second averaged copy of the weights gets no gradient; update_bn runs the model in train mode without gradients",
}


def blobs(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 6, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    ang = y * 1.047 + 0.25 * torch.randn(n, generator=g)
    r = 0.5 + 0.1 * torch.randn(n, generator=g)
    cx, cy = (r * ang.cos())[:, None, None], (r * ang.sin())[:, None, None]
    img = 2.5 * torch.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / 0.05) + torch.randn(n, 16, 16, generator=g)
    img = (img - img.mean()) / img.std()
    return TensorDataset(img.unsqueeze(1), y)


def make_net():
    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))

    return nn.Sequential(block(1, 16), block(16, 32), block(32, 48), nn.Flatten(), nn.Linear(48 * 4, 6))


@torch.no_grad()
def accuracy(net, loader):
    net.eval()
    a = torch.cat([(net(x).argmax(1) == y).float() for x, y in loader]).mean().item()
    net.train()
    return a


def main():
    torch.manual_seed(10)
    train = DataLoader(blobs(2400, 1), batch_size=40, shuffle=True)
    val = DataLoader(blobs(500, 2), batch_size=250)
    net = make_net()
    avg = AveragedModel(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    cycle = 2 * len(train)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=cycle, eta_min=1e-4)
    epochs = 6
    for epoch in range(epochs):
        tot = 0.0
        for x, y in train:
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            tot += loss.item()
        print(f"epoch {epoch} loss {tot / len(train):.4f} val {accuracy(net, val):.3f}")
        if (epoch + 1) % 2 == 0:
            avg.update_parameters(net)
    update_bn(train, avg)
    print(f"averaged over {int(avg.n_averaged)} cycles: val {accuracy(avg, val):.3f}")


main()
