import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader

TRUTH = {
    "id": "blind-topics",
    "row": None,
    "title": "the decay / no-decay split of the parameters leaves the word embedding in neither group",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-missing-parameters"],
    "bricks": ["emb"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

VOCAB, N_TOPICS, PAD = 3000, 12, 0


def make_documents(n, rng):
    docs = []
    for _ in range(n):
        topic = rng.randrange(N_TOPICS)
        length = rng.randint(15, 40)
        words = []
        for _ in range(length):
            if rng.random() < 0.3:
                words.append(1 + topic * 60 + rng.randrange(60))
            else:
                words.append(1 + rng.randrange(VOCAB - 1))
        docs.append((words, topic))
    return docs


def collate(batch):
    longest = max(len(w) for w, _ in batch)
    ids = torch.full((len(batch), longest), PAD)
    for i, (w, _) in enumerate(batch):
        ids[i, : len(w)] = torch.tensor(w)
    return ids, torch.tensor([t for _, t in batch])


class TopicClassifier(nn.Module):
    def __init__(self, vocab, dim=16, hidden=64, classes=N_TOPICS):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, ids):
        mask = (ids != PAD).float().unsqueeze(-1)
        mean = (self.emb(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.fc2(torch.relu(self.fc1(self.norm(mean))))


def configure_optimizer(model, lr, weight_decay):
    no_wd = ("bias", "norm")
    decay = [p for n, p in model.named_parameters() if n.startswith("fc") and n.endswith("weight")]
    no_decay = [p for n, p in model.named_parameters() if any(k in n for k in no_wd)]
    groups = [
        {"params": decay, "weight_decay": weight_decay},
        {"params": no_decay, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr)


def evaluate(model, loader):
    model.eval()
    hit = n = 0
    with torch.no_grad():
        for ids, y in loader:
            hit += (model(ids).argmax(1) == y).sum().item()
            n += len(y)
    return hit / n


def main():
    torch.manual_seed(17)
    rng = random.Random(17)
    train = DataLoader(make_documents(6000, rng), batch_size=100, shuffle=True, collate_fn=collate)
    test = DataLoader(make_documents(1000, rng), batch_size=250, collate_fn=collate)
    model = TopicClassifier(VOCAB)
    optimizer = configure_optimizer(model, lr=5e-3, weight_decay=0.01)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(6):
        model.train()
        total = 0.0
        for ids, y in train:
            optimizer.zero_grad()
            loss = loss_fn(model(ids), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: train loss {total / len(train):.3f}, test accuracy {evaluate(model, test):.3f}")


if __name__ == "__main__":
    main()
