"""The reference training, written the way we would write any: one method for each thing that happens in a step.

Enters: a ``Config``. Leaves: a trained model, checkpoints, one line a log. The bricks are what a reader of the code
would name: data, forward, backward, clip, optimizer, evaluate, checkpoint; ``brickprof`` sees everything inside them
by itself.

A fault (``brickprof/reference/faults/``) overrides one of the methods below with the mistake somebody once made in it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from brickprof.capture.attach import brick
from brickprof.reference import checkpoints
from brickprof.reference.blocks import operations, refuse_triton_on_a_host
from brickprof.reference.config import Config
from brickprof.reference.data import Corpus
from brickprof.reference.model import Llama


class Trainer:
    """``Trainer(config).run()`` trains; everything it owns is an attribute."""

    def __init__(self, config: Config, *, out: Path | None = None, device: str | None = None) -> None:
        self.config = config
        self.out = out
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        refuse_triton_on_a_host(config.kernels, device=self.device, host_ends=config.host_ends)
        self.step = 0
        self.seed()
        self.model = self.build_model()
        (self.model.decoder if config.host_ends else self.model).to(self.device)
        if config.host_ends:
            self.model.embed.weight.requires_grad_(config.tied)
        self.optimizer = self.build_optimizer()
        self.schedule = self.build_schedule()
        scaled = config.dtype == "float16"
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=scaled, init_scale=2.0**12)
        self.corpus = self.build_corpus()

    # -- what the training is made of

    def seed(self) -> None:
        random.seed(self.config.seed)
        torch.manual_seed(self.config.seed)
        if self.config.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)

    def build_model(self) -> Llama:
        return Llama(self.config)

    def build_optimizer(self) -> torch.optim.Optimizer:
        """Matrices decay, gains do not."""
        config = self.config
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)

    def build_schedule(self) -> LambdaLR:
        return LambdaLR(self.optimizer, self.rate)

    def rate(self, step: int) -> float:
        """The learning rate of a step as a share of its peak: up during warm-up, then down to the end."""
        config = self.config
        if step < config.warmup:
            return (step + 1) / config.warmup
        if config.schedule == "constant":
            return 1.0
        progress = min(1.0, (step - config.warmup) / max(1, config.total_steps - config.warmup))
        left = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
        low = config.lr_end / config.lr
        return low + (1 - low) * left

    def build_corpus(self) -> Corpus:
        return Corpus(self.config)

    # -- one step

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.corpus.batches()

    def precision(self) -> AbstractContextManager[Any]:
        if self.config.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.config.dtype))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a micro-batch."""
        with self.precision():
            logits = self.model(tokens if self.config.host_ends else tokens.to(self.device))
            return self.loss(logits, targets.to(logits.device))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return operations(self.config.kernels, logits).cross_entropy(logits.flatten(0, 1), targets.flatten())

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss / self.config.accumulation).backward()

    def clip(self) -> None:
        if self.config.clip:
            self.scaler.unscale_(self.optimizer)
            for parameters in self.sides():
                torch.nn.utils.clip_grad_norm_(parameters, self.config.clip)

    def sides(self) -> list[list[nn.Parameter]]:
        """What is clipped together: everything; or the ends and what is between them, so that no norm travels."""
        everything = list(self.model.parameters())
        if not self.config.host_ends:
            return [everything]
        between = list(self.model.decoder.parameters())
        inside = set(map(id, between))
        return [[each for each in everything if id(each) not in inside], between]

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad()

    def train_step(self, batches: Iterator[tuple[Tensor, Tensor]]) -> float:
        """One update from ``accumulation`` micro-batches; the mean of their losses."""
        total = 0.0
        for _ in range(self.config.accumulation):
            with brick("data", kind="loader"):
                tokens, targets = next(batches)
            with brick("forward"):
                loss = self.forward(tokens, targets)
            with brick("backward"):
                self.backward(loss)
            total += loss.item() / self.config.accumulation
        with brick("clip"):
            self.clip()
        with brick("optimizer", kind="optimizer"):
            self.update()
        return total

    def budget(self) -> AbstractContextManager[Any]:
        """What a step may transfer: with both ends on the host three times for each micro-batch, and never besides."""
        if not self.config.host_ends:
            return nullcontext()
        return brick("train_step", transfers=3 * self.config.accumulation)

    # -- around the steps

    @torch.no_grad()
    def evaluate(self) -> float:
        """The mean loss on sequences that are never trained on."""
        self.model.eval()
        batches = Corpus(self.config, evaluation=True).batches()
        count = self.config.evaluate_batches
        losses = [self.forward(*next(batches)).item() for _ in range(count)]
        self.model.train()
        return sum(losses) / count

    def save(self) -> None:
        if self.out is not None:
            checkpoints.save(self, self.out / f"step-{self.step}.pt")

    def resume(self) -> None:
        """Goes on from the latest checkpoint, if there is one."""
        found = checkpoints.latest(self.out) if self.out is not None else None
        if found is not None:
            checkpoints.load(self, found)
            print(f"resumed at step {self.step} from {found.name}", flush=True)

    def due(self, every: int) -> bool:
        return bool(every) and self.step % every == 0

    def run(self) -> None:
        config, batches = self.config, self.batches()
        self.model.train()
        while self.step < config.total_steps:
            began = time.perf_counter()
            with self.budget():
                loss = self.train_step(batches)
            self.step += 1
            if self.due(10) or self.step == 1:
                self.log(loss, time.perf_counter() - began)
            if self.due(config.evaluate_every):
                with brick("evaluate"):
                    print(f"step {self.step:5d}  eval {self.evaluate():.4f}", flush=True)
            if self.due(config.checkpoint_every):
                with brick("checkpoint"):
                    self.save()

    def log(self, loss: float, seconds: float) -> None:
        rate = self.optimizer.param_groups[0]["lr"]
        print(f"step {self.step:5d}  loss {loss:.4f}  lr {rate:.2e}  {1e3 * seconds:.0f} ms", flush=True)
