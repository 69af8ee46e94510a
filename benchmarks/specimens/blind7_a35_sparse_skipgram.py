import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind7-a35-sparse-skipgram", "title": "healthy item2vec with sparse embedding gradients, SparseAdam plus Adam for the small tower", "family": "other",
         "needs": "cpu", "trap": "sparse gradients: most embedding rows get none in a step; two optimizers; one table starts at zero"}

torch.manual_seed(40)
ITEMS, DIM, GENRES, NEG = 3000, 24, 30, 6
genre = torch.randint(0, GENRES, (ITEMS,))
members = [torch.nonzero(genre == k).flatten() for k in range(GENRES)]


def co_views(n):
    a = torch.randint(0, ITEMS, (n,))
    b = torch.stack([members[genre[i]][torch.randint(0, len(members[genre[i]]), ())] for i in a.tolist()])
    noise = torch.rand(n) < 0.05
    return a, torch.where(noise, torch.randint(0, ITEMS, (n,)), b)


class Item2Vec(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Embedding(ITEMS, DIM, sparse=True)
        self.context = nn.Embedding(ITEMS, DIM, sparse=True)
        nn.init.normal_(self.centre.weight, std=0.3)
        nn.init.zeros_(self.context.weight)
        self.tower = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh())

    def score(self, a, b):
        return (self.tower(self.centre(a)).unsqueeze(1) * self.context(b)).sum(-1)


model = Item2Vec()
tables = torch.optim.SparseAdam([model.centre.weight, model.context.weight], lr=3e-2)
dense = torch.optim.Adam(model.tower.parameters(), lr=2e-3)
pos_a, pos_b = co_views(60_000)

running = None
step = 0
for epoch in range(2):
    order = torch.randperm(len(pos_a))
    for i in range(0, len(order), 256):
        idx = order[i:i + 256]
        a, b = pos_a[idx], pos_b[idx]
        cand = torch.cat([b[:, None], torch.randint(0, ITEMS, (len(a), NEG))], 1)
        logits = model.score(a, cand)
        target = torch.zeros_like(logits)
        target[:, 0] = 1
        loss = F.binary_cross_entropy_with_logits(logits, target) * (NEG + 1)
        tables.zero_grad()
        dense.zero_grad()
        loss.backward()
        tables.step()
        dense.step()
        running = loss.item() if running is None else 0.97 * running + 0.03 * loss.item()
        if step % 60 == 0:
            print(f"step {step} loss {running:.4f}")
        step += 1

model.eval()
with torch.no_grad():
    q = torch.randint(0, ITEMS, (400,))
    sims = model.tower(model.centre(q)) @ model.context.weight.t()
    top = sims.topk(10, 1).indices
    print("same-genre precision@10", (genre[top] == genre[q][:, None]).float().mean().item(), "chance", 1 / GENRES)
