import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind7-a37-curriculum-lstm", "title": "healthy LSTM on a running count modulo three task with a length curriculum, accumulation and bf16 autocast", "family": "lstm",
         "needs": "cpu", "trap": "loss can jump up when the curriculum makes sequences longer; tiny micro-batches; two backward passes per step"}

torch.manual_seed(17)
STAGES = [(3, 120), (6, 90), (12, 90)]
ACCUM, MICRO = 2, 32


class Counter(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        with torch.no_grad():
            self.lstm.bias_hh_l0[hidden:2 * hidden].fill_(1.0)
        self.out = nn.Linear(hidden, 3)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


def batch(n, length):
    bits = torch.randint(0, 2, (n, length))
    return bits[..., None].float() * 2 - 1, bits.cumsum(1) % 3


model = Counter()
opt = torch.optim.Adam(model.parameters(), lr=8e-3)
step = 0
for length, steps in STAGES:
    for _ in range(steps):
        opt.zero_grad()
        shown = 0.0
        for _ in range(ACCUM):
            x, y = batch(MICRO, length)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x)
            loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten()) / ACCUM
            loss.backward()
            shown += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 30 == 0:
            print(f"length {length} step {step} loss {shown:.4f}")
        step += 1

model.eval()
with torch.no_grad():
    for length in (3, 6, 12, 16):
        x, y = batch(512, length)
        print("length", length, "accuracy", (model(x).argmax(-1) == y).float().mean().item())
