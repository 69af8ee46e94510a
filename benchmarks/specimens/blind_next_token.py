import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-next-token",
    "row": None,
    "title": "post-norm transformer started at its peak Adam rate with no warm-up",
    "family": "gpt",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["warmup-missing"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

torch.manual_seed(21)
torch.set_num_threads(1)

VOCAB, CONTEXT, WIDTH, HEADS, DEPTH = 32, 16, 48, 4, 8
STEPS, BATCH, PEAK = 180, 16, 3e-3


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, VOCAB)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, ids):
        n = ids.size(1)
        h = self.tok(ids) + self.pos(torch.arange(n))
        h = self.layers(h, mask=self.mask[:n, :n], is_causal=True)
        return self.out(h)


table = torch.stack([torch.randperm(VOCAB) for _ in range(4)])


def sample(n):
    """Each sequence follows one of four permutations, with a few random tokens."""
    rule = torch.randint(0, 4, (n,))
    seq = torch.empty(n, CONTEXT + 1, dtype=torch.long)
    seq[:, 0] = torch.randint(0, VOCAB, (n,))
    for t in range(CONTEXT):
        nxt = table[rule, seq[:, t]]
        noise = torch.rand(n) < 0.05
        seq[:, t + 1] = torch.where(noise, torch.randint(0, VOCAB, (n,)), nxt)
    return seq[:, :-1], seq[:, 1:]


model = Decoder()
optimizer = torch.optim.Adam(model.parameters(), lr=PEAK, betas=(0.9, 0.999))
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

model.train()
for step in range(STEPS):
    x, y = sample(BATCH)
    logits = model(x)
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"{step:5d}  loss {loss.item():.3f}  lr {scheduler.get_last_lr()[0]:.2e}")

model.eval()
with torch.no_grad():
    x, y = sample(256)
    acc = (model(x).argmax(-1) == y)[:, 4:].float().mean().item()
print("next-token accuracy", round(acc, 3))
