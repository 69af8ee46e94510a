"""The model ends in a log-softmax and the loss is the negative log-likelihood: the pair that belongs together."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "nll-log-softmax",
    "title": "log-softmax with NLL",
    "family": "cnn",
    "trap": "the output is a distribution already, and that is right for this loss",
    "needs": "cpu",
}


def digits(count):
    """Seven-segment digits with noise."""
    lit = "1110111 0010010 1011101 1011011 0111010 1101011 1101111 1010010 1111111 1111011"
    on = torch.tensor([[int(bit) for bit in digit] for digit in lit.split()])
    label = torch.randint(0, 10, (count,))
    images = torch.zeros(count, 1, 9, 6)
    places = (
        (0, slice(1, 5)),
        (slice(1, 4), 0),
        (slice(1, 4), 5),
        (4, slice(1, 5)),
        (slice(5, 8), 0),
        (slice(5, 8), 5),
    )
    for segment, (row, column) in enumerate((*places, (8, slice(1, 5)))):
        shade = on[label, segment].float()
        images[:, 0, row, column] = shade[:, None].expand(-1, images[:, 0, row, column].shape[1])
    return images + 0.25 * torch.randn_like(images), label


torch.set_num_threads(1)
torch.manual_seed(0)
loader = DataLoader(TensorDataset(*digits(900)), batch_size=45, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d((1, 2)),
    nn.Flatten(),
    nn.Linear(216, 10),
    nn.LogSoftmax(dim=1),
)
criterion = nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(7):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} nll {loss.item():.4f}")
