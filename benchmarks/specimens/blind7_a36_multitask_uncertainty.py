"""Multi-task transformer over padded event sequences, homoscedastic uncertainty weights, warm restarts, weight averaging."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind7-a36-multitask-uncertainty", "title": "healthy multi-task transformer whose uncertainty-weighted loss goes below zero", "family": "other",
         "needs": "cpu", "trap": "total loss becomes negative; lr jumps back up at warm restarts; padded positions; averaged weights used for evaluation"}

KINDS, MAXLEN, DIM = 30, 14, 48


def events(n, seed):
    g = torch.Generator().manual_seed(seed)
    length = torch.randint(6, MAXLEN + 1, (n,), generator=g)
    ids = torch.randint(1, KINDS, (n, MAXLEN), generator=g)
    pad = torch.arange(MAXLEN)[None] >= length[:, None]
    ids = ids.masked_fill(pad, 0)
    weight = torch.linspace(-1, 1, KINDS)
    spend = (weight[ids] * ~pad).sum(1) / length.float().sqrt() * 1.2
    churn = ((ids < 6) & ~pad).sum(1) > 2
    return ids, pad, spend + 0.05 * torch.randn(n, generator=g), churn.float()


class EventModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(KINDS, DIM, padding_idx=0)
        layer = nn.TransformerEncoderLayer(DIM, 4, 96, dropout=0.05, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)
        self.spend, self.churn = nn.Linear(DIM, 1), nn.Linear(DIM, 1)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, ids, pad):
        h = self.norm(self.encoder(self.emb(ids), src_key_padding_mask=pad))
        keep = (~pad).float()[..., None]
        h = (h * keep).sum(1) / keep.sum(1).sqrt()
        return self.spend(h).squeeze(-1), self.churn(h).squeeze(-1)


class Trainer:
    def __init__(self, model, steps=180):
        self.model, self.steps = model, steps
        self.opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.opt, T_0=60, eta_min=1e-5)
        self.avg = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.97))

    def losses(self, batch):
        ids, pad, spend, churn = batch
        s, c = self.model(ids, pad)
        return torch.stack([F.mse_loss(s, spend), F.binary_cross_entropy_with_logits(c, churn)])

    def fit(self, data, valid):
        n = len(data[0])
        order, at = torch.randperm(n), 0
        for step in range(self.steps):
            if at + 40 > n:
                order, at = torch.randperm(n), 0
            idx, at = order[at:at + 40], at + 40
            self.model.train()
            parts = self.losses([d[idx] for d in data])
            loss = (torch.exp(-self.model.log_var) * parts + self.model.log_var).sum()
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
            self.opt.step()
            self.sched.step()
            self.avg.update_parameters(self.model)
            if step % 30 == 29:
                self.report(step, loss, parts, valid)

    @torch.no_grad()
    def report(self, step, loss, parts, valid):
        self.avg.eval()
        s, c = self.avg(valid[0], valid[1])
        acc = ((c > 0).float() == valid[3]).float().mean().item()
        print(f"step {step + 1} total {loss.item():.3f} parts {[round(v, 4) for v in parts.tolist()]} "
              f"val mse {F.mse_loss(s, valid[2]).item():.4f} acc {acc:.3f}")


if __name__ == "__main__":
    torch.manual_seed(3)
    Trainer(EventModel()).fit(events(4000, 0), events(500, 1))
