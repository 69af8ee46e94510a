"""CTC recogniser, utterance length grows over a curriculum."""
import math
import torch
from torch import nn

TRUTH = {
    "id": "blind6-d11-digits-asr",
    "row": None,
    "title": "in the second curriculum stage targets are longer than the subsampled frames; zero_infinity turns the infinite CTC loss into exactly 0.0",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["sentinel-loss"],
    "bricks": [],
    "first_step": 130,
    "needs": "cpu",
    "crashes": False,
}

SYMBOLS, FEAT, STRIDE = 10, 16, 4
CURRICULUM = [
    # (updates, frames per utterance, symbols per utterance)
    (130, 48, 5),
    (150, 64, 18),
]


class Speech:
    def __init__(self):
        self.voice = torch.randn(SYMBOLS, FEAT, generator=torch.Generator().manual_seed(77))

    def __call__(self, b, frames, symbols):
        y = torch.randint(0, SYMBOLS, (b, symbols))
        slot = (torch.arange(frames) * symbols) // frames
        x = self.voice[y[:, slot]] + 0.4 * torch.randn(b, frames, FEAT)
        return x, y + 1


class Recogniser(nn.Module):
    def __init__(self, ch=48):
        super().__init__()
        self.sub = nn.Sequential(nn.Conv1d(FEAT, ch, 5, stride=2, padding=2), nn.GELU(),
                                 nn.Conv1d(ch, ch, 5, stride=2, padding=2), nn.GELU())
        self.rnn = nn.GRU(ch, ch, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * ch, SYMBOLS + 1)

    def forward(self, x):
        h = self.sub(x.transpose(1, 2)).transpose(1, 2)
        h, _ = self.rnn(h)
        return self.out(h).log_softmax(-1)


def symbol_error(model, x, y):
    model.eval()
    with torch.no_grad():
        best = model(x).argmax(-1)
    model.train()
    wrong = 0
    for hyp, ref in zip(best, y):
        seq = torch.unique_consecutive(hyp)
        seq = seq[seq > 0].tolist()
        ref = ref.tolist()
        row = list(range(len(seq) + 1))
        for i, a in enumerate(ref, 1):
            prev, row[0] = row[0], i
            for j, b in enumerate(seq, 1):
                prev, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, prev + (a != b))
        wrong += row[-1]
    return wrong / y.numel()


def main():
    torch.manual_seed(1)
    data, model = Speech(), Recogniser()
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    total = sum(c[0] for c in CURRICULUM)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1, (s + 1) / 10) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * s / total))))
    step = 0
    for stage, (updates, frames, symbols) in enumerate(CURRICULUM):
        dev = data(32, frames, symbols)
        for _ in range(updates):
            x, y = data(24, frames, symbols)
            lp = model(x)
            n = torch.full((len(x),), lp.size(1))
            m = torch.full((len(x),), symbols)
            loss = ctc(lp.transpose(0, 1), y, n, m)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            sched.step()
            step += 1
            if step % 20 == 0:
                print(f"stage {stage} step {step} ctc {loss.item():.4f}")
        print(f"stage {stage} done, dev symbol error {symbol_error(model, *dev):.3f}")


main()
