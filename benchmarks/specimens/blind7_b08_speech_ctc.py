TRUTH = {
    "id": "blind7-b08-speech-ctc",
    "row": None,
    "title": "CTCLoss is given softmax probabilities where it expects log-probabilities; the loss turns negative and floors, and the phone error rate stays high",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["loss-input-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset

N_PHONE, N_MEL = 10, 20


class Utterances(IterableDataset):
    """each phone is a fixed spectral template held for 3-5 frames, plus noise"""

    def __init__(self, n, seed):
        self.n, self.seed = n, seed
        self.templ = torch.randn(N_PHONE + 1, N_MEL, generator=torch.Generator().manual_seed(77))

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.n):
            k = int(torch.randint(3, 7, (1,), generator=g))
            ph = torch.randint(1, N_PHONE + 1, (k,), generator=g)
            dur = torch.randint(3, 6, (k,), generator=g)
            x = self.templ[ph.repeat_interleave(dur)]
            yield x + 0.3 * torch.randn(x.shape, generator=g), ph


def collate(items):
    xs, ys = zip(*items)
    return (pad_sequence(xs, batch_first=True), torch.tensor([len(x) for x in xs]),
            torch.cat(ys), torch.tensor([len(y) for y in ys]))


class Acoustic(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.conv = nn.Conv1d(N_MEL, h, 3, padding=1)
        self.gru = nn.GRU(h, h, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * h, N_PHONE + 1)

    def forward(self, x):
        y = torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        y, _ = self.gru(y)
        return self.fc(y)


def greedy(logits, lens):
    res = []
    for row, n in zip(logits.argmax(-1), lens):
        p = torch.unique_consecutive(row[:n])
        res.append(p[p != 0].tolist())
    return res


def phone_error(model, loader):
    model.eval()
    bad = tot = 0
    with torch.no_grad():
        for x, xl, y, yl in loader:
            hyp = greedy(model(x), xl)
            for h, r in zip(hyp, y.split(yl.tolist())):
                r = r.tolist()
                prev = list(range(len(r) + 1))
                for i, a in enumerate(h, 1):
                    cur = [i]
                    for j, b in enumerate(r, 1):
                        cur.append(min(prev[j] + 1, cur[-1] + 1, prev[j - 1] + (a != b)))
                    prev = cur
                bad += prev[-1]
                tot += len(r)
    model.train()
    return bad / tot


def main():
    torch.manual_seed(1)
    model = Acoustic()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    val = DataLoader(Utterances(48, 999), 24, collate_fn=collate)
    step = 0
    for epoch in range(5):
        for x, xl, y, yl in DataLoader(Utterances(16 * 40, epoch), 16, collate_fn=collate):
            out = model(x).transpose(0, 1)
            loss = ctc(out.softmax(-1), y, xl, yl)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            step += 1
        print(f"epoch {epoch} step {step} ctc {loss.item():.3f} PER {phone_error(model, val):.3f}")


if __name__ == "__main__":
    main()
