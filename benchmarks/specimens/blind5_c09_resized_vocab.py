import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-c09-resized-vocab",
    "row": None,
    "title": "resize_token_embeddings makes a new embedding and a new head and does not tie them again: they drift, and the head is left out of the checkpoint",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["weight-tying-broken"],
    "bricks": ["lm_head", "wte"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class LMConfig:
    vocab_size: int = 60
    n_ctx: int = 24
    n_embd: int = 64
    n_layer: int = 2
    n_head: int = 4
    tie_word_embeddings: bool = True


class CausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_ctx, config.n_embd)
        self.h = nn.ModuleList(
            nn.TransformerEncoderLayer(config.n_embd, config.n_head, 4 * config.n_embd, dropout=0.0,
                                       activation="gelu", batch_first=True, norm_first=True)
            for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        for e in (self.wte, self.wpe):
            nn.init.normal_(e.weight, std=0.05)
        self.tie_weights()

    def tie_weights(self):
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.wte.weight

    def resize_token_embeddings(self, n):
        old = self.wte.weight.data
        k = min(n, old.size(0))
        wte = nn.Embedding(n, self.config.n_embd)
        head = nn.Linear(self.config.n_embd, n, bias=False)
        nn.init.normal_(wte.weight, std=0.05)
        wte.weight.data[:k] = old[:k]
        head.weight.data.copy_(wte.weight.data)
        self.wte, self.lm_head = wte, head
        self.config.vocab_size = n

    def forward(self, ids):
        T = ids.size(1)
        x = self.wte(ids) + self.wpe(torch.arange(T, device=ids.device))
        mask = torch.triu(torch.full((T, T), float("-inf")), 1)
        for block in self.h:
            x = block(x, src_mask=mask, is_causal=True)
        return self.lm_head(self.ln_f(x))


def lm_loss(model, seq):
    logits = model(seq[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten())


def make_corpus(n, vocab, length, seed):
    g = torch.Generator().manual_seed(seed)
    step = torch.randint(1, 7, (n, 1), generator=g)
    start = torch.randint(0, vocab - 4, (n, 1), generator=g)
    seq = (start + step * torch.arange(length - 1)) % (vocab - 4)
    noise = torch.rand(seq.shape, generator=g) < 0.05
    seq = torch.where(noise, torch.randint(0, vocab - 4, seq.shape, generator=g), seq)
    marker = vocab - 4 + (step % 4)
    return torch.cat([marker, seq], 1)


def save_checkpoint(model, path):
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    torch.save({"config": model.config, "state": state}, path)


def load_checkpoint(path):
    blob = torch.load(path, weights_only=False)
    model = CausalLM(blob["config"])
    model.load_state_dict(blob["state"], strict=False)
    model.tie_weights()
    return model


def main():
    torch.manual_seed(8)
    cfg = LMConfig()
    model = CausalLM(cfg)
    model.resize_token_embeddings(cfg.vocab_size + 4)
    vocab = cfg.vocab_size
    train, val = make_corpus(4000, vocab, cfg.n_ctx + 1, 1), make_corpus(400, vocab, cfg.n_ctx + 1, 2)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    steps = 240
    sched = torch.optim.lr_scheduler.SequentialLR(opt, [
        torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=20),
        torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps - 20)], milestones=[20])
    model.train()
    order, ptr = torch.randperm(len(train)), 0
    for step in range(steps):
        if ptr + 32 > len(order):
            order, ptr = torch.randperm(len(train)), 0
        loss = lm_loss(model, train[order[ptr:ptr + 32]])
        ptr += 32
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        print(f"val loss at end of training {lm_loss(model, val).item():.3f}")
    path = "resized_vocab.pt"
    save_checkpoint(model, path)
    served = load_checkpoint(path).eval()
    with torch.no_grad():
        print(f"val loss of the served model  {lm_loss(served, val).item():.3f}")
    os.remove(path)


if __name__ == "__main__":
    main()
