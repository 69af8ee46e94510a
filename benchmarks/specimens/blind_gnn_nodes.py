import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-gnn-nodes",
    "row": None,
    "title": "graph convolution sums over neighbours with an adjacency that was never normalised by degree: activations and gradients grow by the degree in every layer",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["exploding-gradients"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

torch.manual_seed(11)
N, CLASSES, FEAT, HID, LAYERS = 400, 4, 24, 48, 7

# planted-partition graph
label = torch.randint(0, CLASSES, (N,))
same = label[:, None] == label[None, :]
prob = torch.where(same, torch.tensor(0.10), torch.tensor(0.01))
upper = torch.triu(torch.rand(N, N) < prob, diagonal=1)
adj = (upper | upper.t()).float()
adj = adj + torch.eye(N)

centres = torch.randn(CLASSES, FEAT) * 0.6
feats = centres[label] + torch.randn(N, FEAT)

perm = torch.randperm(N)
train_idx, val_idx = perm[:240], perm[240:]


class GraphConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)

    def forward(self, x, a):
        return a @ self.lin(x)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        dims = [FEAT] + [HID] * (LAYERS - 1) + [CLASSES]
        self.convs = nn.ModuleList(GraphConv(i, o) for i, o in zip(dims[:-1], dims[1:]))
        for c in self.convs:
            nn.init.xavier_uniform_(c.lin.weight)
            nn.init.zeros_(c.lin.bias)

    def forward(self, x, a):
        for c in self.convs[:-1]:
            x = F.relu(c(x, a))
        return self.convs[-1](x, a)


model = GCN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

for it in range(200):
    model.train()
    batch = train_idx[torch.randperm(len(train_idx))[:160]]
    logits = model(feats, adj)
    loss = F.cross_entropy(logits[batch], label[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if it % 20 == 0 or it == 199:
        model.eval()
        with torch.no_grad():
            acc = (model(feats, adj)[val_idx].argmax(1) == label[val_idx]).float().mean()
        print(f"{it:3d} loss {loss.item():.4f} val acc {acc:.3f}")
