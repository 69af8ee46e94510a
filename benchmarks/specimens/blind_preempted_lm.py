"""Character model over a sharded corpus; the job is split into two allocations joined by a checkpoint."""
import os
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-preempted-lm",
    "row": 36,
    "title": "after the resume the shard reader starts again at the first shard, so the second half of the data is never seen",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["data-order-lost-on-resume"],
    "bricks": [],
    "first_step": 120,
    "needs": "cpu",
    "crashes": False,
}

VOCAB, T, B = 60, 32, 16
SHARDS, PER_SHARD = 12, 20          # 240 batches in all
CKPT = "preempted_lm.pt"


def make_shard(k, rows=PER_SHARD * B, salt=0):
    """Curriculum: the first six shards cover the common topics, the later ones all twelve."""
    g = torch.Generator().manual_seed(1000 + k + salt)
    topic = torch.randint(0, 6 if k < SHARDS // 2 else 12, (rows, 1), generator=g)
    at = torch.randint(0, 5, (rows, 1), generator=g)
    hop = 1 + topic % 4
    noise = (torch.rand(rows, T + 1, generator=g) < 0.1) * torch.randint(0, 5, (rows, T + 1), generator=g)
    return topic * 5 + (at + hop * torch.arange(T + 1) + noise) % 5


class ShardReader:
    def __init__(self, shards, order_seed):
        self.shards = shards
        self.order_seed = order_seed
        self.cursor = 0

    def __iter__(self):
        g = torch.Generator().manual_seed(self.order_seed)
        for data in self.shards:
            rows = torch.randperm(len(data), generator=g)
            for i in range(0, len(rows), B):
                self.cursor += 1
                yield data[rows[i:i + B]]


class TinyGPT(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(T, d)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.ln = nn.LayerNorm(d)
        self.out = nn.Linear(d, VOCAB)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(T), persistent=False)

    def forward(self, x):
        h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
        return self.out(self.ln(self.body(h, mask=self.mask, is_causal=True)))


def lm_loss(model, seq):
    return F.cross_entropy(model(seq[:, :-1]).reshape(-1, VOCAB), seq[:, 1:].reshape(-1))


@torch.no_grad()
def validate(model, held):
    model.eval()
    v = lm_loss(model, held).item()
    model.train()
    return v


def allocation(shards, held, max_steps, stop_at):
    torch.manual_seed(5)
    model = TinyGPT()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 15) * max(0.1, 1 - s / max_steps))
    step = 0
    reader = ShardReader(shards, order_seed=42)
    if os.path.exists(CKPT):
        state = torch.load(CKPT)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        sched.load_state_dict(state["sched"])
        step = state["step"]
        reader.cursor = state["cursor"]
        print(f"resumed at step {step}, cursor {reader.cursor}")
    for seq in reader:
        loss = lm_loss(model, seq)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f} val {validate(model, held):.3f}")
        if step == stop_at:
            break
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(),
                "step": step, "cursor": reader.cursor}, CKPT)


def main():
    if os.path.exists(CKPT):
        os.remove(CKPT)
    shards = [make_shard(k) for k in range(SHARDS)]
    held = make_shard(SHARDS - 1, rows=128, salt=500)
    total = SHARDS * PER_SHARD
    allocation(shards, held, total, stop_at=total // 2)
    allocation(shards, held, total, stop_at=total)
    os.remove(CKPT)


main()
