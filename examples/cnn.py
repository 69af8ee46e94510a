"""A small CNN tells crosses, squares and rings apart, with batch norm and a validation pass."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SHAPES = ("cross", "square", "ring")


def draw(kind: int, x: int, y: int, radius: int) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    down, across = (rows - y).abs(), (columns - x).abs()
    if SHAPES[kind] == "cross":
        shape = ((down == 0) | (across == 0)) & (torch.maximum(down, across) <= radius)
    elif SHAPES[kind] == "square":
        shape = torch.maximum(down, across) == radius
    else:
        shape = ((down**2 + across**2).float().sqrt() - radius).abs() < 0.6
    return shape.float()


def pictures(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    places = torch.randint(5, 11, (count, 2), generator=generator)
    sizes = torch.randint(3, 5, (count,), generator=generator)
    images = torch.stack(
        [draw(int(k), int(x), int(y), int(r)) for k, (x, y), r in zip(labels, places, sizes, strict=True)]
    )
    images += 0.3 * torch.randn(images.shape, generator=generator)
    return TensorDataset(images.unsqueeze(1), labels)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = self.stage(1, 16)
        self.body = self.stage(16, 32)
        self.top = self.stage(32, 32)
        self.classify = nn.Linear(32, len(SHAPES))

    @staticmethod
    def stage(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.top(self.body(self.stem(images)))
        return self.classify(x.mean(dim=(2, 3)))


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    train = DataLoader(pictures(960, seed=1), batch_size=args.batch, shuffle=True)
    test = DataLoader(pictures(240, seed=2), batch_size=120)
    model = Net().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)

    step = 0
    for epoch in range(args.epochs):
        for images, labels in train:
            images, labels = images.to(args.device), labels.to(args.device)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step:4d}  loss {loss.item():.6f}", flush=True)
            step += 1
        print(f"epoch {epoch}  accuracy {accuracy(model, test, args.device):.3f}", flush=True)


if __name__ == "__main__":
    main()
