import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-intent-encoder",
    "row": None,
    "title": "forward returns softmax probabilities and CrossEntropyLoss applies log-softmax once more",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["double-softmax"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

VOCAB, SEQ, INTENTS = 120, 20, 10


def make_utterances(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, INTENTS, (n,), generator=g)
    x = torch.randint(INTENTS * 6, VOCAB, (n, SEQ), generator=g)
    # every intent owns six keywords; two or three of them show up somewhere, plus one distractor
    for _ in range(3):
        pos = torch.randint(0, SEQ, (n,), generator=g)
        x[torch.arange(n), pos] = y * 6 + torch.randint(0, 6, (n,), generator=g)
    pos = torch.randint(0, SEQ, (n,), generator=g)
    x[torch.arange(n), pos] = torch.randint(0, INTENTS * 6, (n,), generator=g)
    return x, y


class IntentEncoder(nn.Module):
    def __init__(self, d_model=64, heads=4, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, d_model)
        self.pos = nn.Parameter(torch.zeros(1, SEQ, d_model))
        nn.init.normal_(self.embed.weight, std=0.1)
        nn.init.normal_(self.pos, std=0.02)
        layer = nn.TransformerEncoderLayer(d_model, heads, 128, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.classifier = nn.Linear(d_model, INTENTS)

    def forward(self, tokens):
        h = self.encoder(self.embed(tokens) + self.pos).mean(dim=1)
        return F.softmax(self.classifier(h), dim=-1)


def accuracy(model, loader):
    model.eval()
    with torch.inference_mode():
        hits = [(model(x).argmax(-1) == y).float() for x, y in loader]
    model.train()
    return torch.cat(hits).mean().item()


torch.manual_seed(3)
train_loader = DataLoader(TensorDataset(*make_utterances(2560, 1)), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(*make_utterances(400, 2)), batch_size=100)
model = IntentEncoder()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
EPOCHS = 4
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=EPOCHS * len(train_loader))

for epoch in range(EPOCHS):
    for i, (tokens, intent) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = criterion(model(tokens), intent)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if i % 25 == 0:
            print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")
    print(f"epoch {epoch} val accuracy {accuracy(model, val_loader):.3f}")
