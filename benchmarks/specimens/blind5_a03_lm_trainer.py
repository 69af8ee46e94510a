import math
import time
from dataclasses import dataclass, field
from typing import Dict, List, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind5-a03-lm-trainer",
    "row": None,
    "title": "the cosine schedule's num_training_steps counts one epoch of six: lr is zero after the first epoch",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["schedule-horizon-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

VOCAB = 16


@dataclass
class TrainingArguments:
    per_device_train_batch_size: int = 32
    num_train_epochs: int = 6
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    warmup_ratio: float = 0.1
    max_grad_norm: float = 1.0
    logging_steps: int = 25
    seed: int = 42


class GrammarDataset(Dataset):
    """Second-order Markov strings over a small alphabet."""

    def __init__(self, n, length=33, seed=0):
        table = torch.randint(0, VOCAB, (VOCAB, VOCAB), generator=torch.Generator().manual_seed(99))
        g = torch.Generator().manual_seed(seed)
        s = torch.zeros(n, length, dtype=torch.long)
        s[:, :2] = torch.randint(0, VOCAB, (n, 2), generator=g)
        for t in range(2, length):
            nxt = table[s[:, t - 2], s[:, t - 1]]
            noise = torch.rand(n, generator=g) < 0.1
            rnd = torch.randint(0, VOCAB, (n,), generator=g)
            s[:, t] = torch.where(noise, rnd, nxt)
        self.data = s

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return {"input_ids": self.data[i, :-1], "labels": self.data[i, 1:]}


class TinyLM(nn.Module):
    def __init__(self, d=64, heads=4, layers=2, ctx=32):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(ctx, d)
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB, bias=False)

    def forward(self, input_ids, labels=None):
        T = input_ids.size(1)
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
        h = self.tok(input_ids) + self.pos(torch.arange(T))
        logits = self.head(self.norm(self.blocks(h, mask=mask)))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def get_cosine_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
    def fn(step):
        if step < num_warmup_steps:
            return (step + 1) / max(1, num_warmup_steps)
        p = (step - num_warmup_steps) / max(1, num_training_steps - num_warmup_steps)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, p)))

    return LambdaLR(optimizer, fn)


class Trainer:
    def __init__(self, model, args: TrainingArguments, train_dataset, eval_dataset=None):
        self.model, self.args = model, args
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.log_history: List[Dict] = []

    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, self.args.per_device_train_batch_size, shuffle=True, drop_last=True)

    def create_optimizer_and_scheduler(self, num_training_steps):
        decay = [p for n, p in self.model.named_parameters() if p.dim() > 1]
        rest = [p for n, p in self.model.named_parameters() if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decay, "weight_decay": self.args.weight_decay}, {"params": rest, "weight_decay": 0.0}],
            lr=self.args.learning_rate,
        )
        warmup = int(self.args.warmup_ratio * num_training_steps)
        self.lr_scheduler = get_cosine_schedule_with_warmup(self.optimizer, warmup, num_training_steps)

    def train(self):
        torch.manual_seed(self.args.seed)
        loader = self.get_train_dataloader()
        self.create_optimizer_and_scheduler(num_training_steps=len(loader))
        step, t0, running = 0, time.time(), 0.0
        for epoch in range(self.args.num_train_epochs):
            self.model.train()
            for batch in loader:
                out = self.model(**batch)
                out["loss"].backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
                self.optimizer.step()
                self.lr_scheduler.step()
                self.optimizer.zero_grad()
                step += 1
                running += out["loss"].item()
                if step % self.args.logging_steps == 0:
                    self.log({"step": step, "loss": round(running / self.args.logging_steps, 4), "epoch": epoch})
                    running = 0.0
            self.log(self.evaluate())
        print(f"done in {time.time() - t0:.1f}s")

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        losses = [self.model(**b)["loss"].item() for b in DataLoader(self.eval_dataset, 128)]
        self.model.train()
        return {"eval_loss": round(sum(losses) / len(losses), 4)}

    def log(self, d):
        self.log_history.append(d)
        print(d)


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = Trainer(TinyLM(), TrainingArguments(), GrammarDataset(1600, seed=1), GrammarDataset(256, seed=2))
    trainer.train()
