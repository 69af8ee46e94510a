"""Images are fed as bytes from 0 to 255, the division by 255 was lost with the old transform. With SGD at a usual
rate the first updates blow the loss up and kill the ReLU units."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "cause-unnormalised-inputs-pixels-cnn",
    "row": None,
    "title": "pixels from 0 to 255",
    "family": "cnn",
    "kind": "numeric",
    "contracts": ["C-INPUT-001", "C-TRAINSTABLE-001"],
    "root_causes": ["unnormalised-inputs"],
    "bricks": ["conv1"],
    "first_step": 0,
    "needs": "cpu",
}


class Pictures(Dataset):
    def __init__(self, count):
        self.labels = torch.randint(0, 3, (count,))
        base = 60 + 20 * torch.randn(count, 1, 10, 10)
        for image, label in zip(base, self.labels.tolist(), strict=True):
            image[0, 3 * label : 3 * label + 3] += 120
        self.images = base.clamp(0, 255).to(torch.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index].float(), self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.fc1 = nn.Linear(16 * 36, 32)
        self.fc2 = nn.Linear(32, 3)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    loader = DataLoader(Pictures(600), batch_size=30, shuffle=True)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(6):
        losses = []
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch} first {losses[0]:.3f} worst {max(losses):.3g} last {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
