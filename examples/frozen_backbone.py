"""Fine-tuning: the backbone is frozen and stays as it is, only a new head learns."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(inputs, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width), nn.GELU()
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def clusters(count: int, inputs: int, classes: int) -> TensorDataset:
    centres = torch.randn(classes, inputs) * 1.5
    labels = torch.randint(classes, (count,))
    return TensorDataset(centres[labels] + torch.randn(count, inputs), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Classifier(inputs=16, width=64, classes=1000)  # as if it came with somebody's checkpoint
    model.backbone.requires_grad_(False)
    model.head = nn.Linear(64, 5)
    model.to(args.device)
    before = [parameter.clone() for parameter in model.backbone.parameters()]

    loader = DataLoader(clusters(1280, inputs=16, classes=5), batch_size=args.batch, shuffle=True)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.3)

    step = 0
    for _ in range(args.epochs):
        for x, labels in loader:
            loss = F.cross_entropy(model(x.to(args.device)), labels.to(args.device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step:4d}  loss {loss.item():.6f}", flush=True)
            step += 1
        schedule.step()

    same = all(torch.equal(a, b) for a, b in zip(before, model.backbone.parameters(), strict=True))
    print(f"the backbone is {'unchanged' if same else 'CHANGED'} after {step} steps")


if __name__ == "__main__":
    main()
