import queue
import threading

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

TRUTH = {"id": "blind6-e34-session-recommender", "title": "session recommender with sparse item embeddings (SparseAdam), dense tower (Adam), click and dwell tasks, padded sessions, prefetch thread that copies",
         "family": "other", "needs": "cpu",
         "trap": "two optimizers; sparse gradients; the padding row never moves; most embedding rows idle in a step; staging array is reused but cloned"}

ITEMS, MAXLEN, B = 800, 10, 64
rng = np.random.default_rng(0)
genre = rng.integers(0, 8, ITEMS + 1)
by_genre = [np.flatnonzero(genre[1:] == k) + 1 for k in range(8)]


def feeder(out, stop):
    r = np.random.default_rng(1)
    stage = np.zeros((B, MAXLEN), np.int64)
    while not stop.is_set():
        stage[:] = 0
        g = r.integers(0, 8, B)
        n = r.integers(3, MAXLEN + 1, B)
        for i in range(B):
            stage[i, :n[i]] = r.choice(by_genre[g[i]], n[i])
        liked = r.random(B) < 0.5
        cand = np.array([r.choice(by_genre[g[i]]) if liked[i] else r.integers(1, ITEMS + 1) for i in range(B)])
        click = (genre[cand] == g).astype(np.float32)
        dwell = (0.2 * n + click * 1.5 + 0.1 * r.normal(size=B)).astype(np.float32)
        item = (torch.from_numpy(stage).clone(), torch.from_numpy(cand), torch.from_numpy(click), torch.from_numpy(dwell))
        while not stop.is_set():
            try:
                out.put(item, timeout=0.1)
                break
            except queue.Full:
                pass


class Recommender(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.items = nn.Embedding(ITEMS + 1, dim, padding_idx=0, sparse=True)
        self.shared = nn.Sequential(nn.Linear(3 * dim + 1, 64), nn.ReLU())
        self.click, self.dwell = nn.Linear(64, 1), nn.Linear(64, 1)

    def forward(self, sess, cand):
        mask = (sess > 0).float()
        n = mask.sum(1, keepdim=True)
        s = self.items(sess).sum(1) / n
        c = self.items(cand)
        h = self.shared(torch.cat([s, c, s * c, n / MAXLEN], 1))
        return self.click(h).squeeze(1), self.dwell(h).squeeze(1)


def main():
    torch.manual_seed(2)
    q, stop = queue.Queue(4), threading.Event()
    t = threading.Thread(target=feeder, args=(q, stop), daemon=True)
    t.start()
    net = Recommender()
    opts = [torch.optim.SparseAdam(net.items.parameters(), lr=2e-2),
            torch.optim.Adam([p for n, p in net.named_parameters() if not n.startswith("items")], lr=3e-3)]
    avg = np.zeros(3)
    for step in range(500):
        sess, cand, click, dwell = q.get()
        pc, pd = net(sess, cand)
        lc, ld = F.binary_cross_entropy_with_logits(pc, click), F.huber_loss(pd, dwell)
        for o in opts:
            o.zero_grad()
        (lc + 0.5 * ld).backward()
        for o in opts:
            o.step()
        avg = avg * 0.97 + 0.03 * np.array([lc.item(), ld.item(), ((pc > 0).float() == click).float().mean().item()])
        if step % 50 == 49:
            c = avg / (1 - 0.97 ** (step + 1))
            print(f"{step + 1} click {c[0]:.3f} dwell {c[1]:.3f} acc {c[2]:.3f}")
    stop.set()
    t.join()


if __name__ == "__main__":
    main()
