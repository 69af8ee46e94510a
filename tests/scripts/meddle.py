"""Runs a script as a careless profiler would: `python meddle.py rng|inplace SCRIPT ARGS`.

The controls of the identity test: each looks at the gradients before every update and disturbs the training.
"""

import runpy
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


def gradients(optimizer):
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def sample_by_the_global_generator(optimizer, args, kwargs):
    for gradient in gradients(optimizer):
        gradient.flatten()[torch.randint(gradient.numel(), (16,))].abs().max()


def read_in_place(optimizer, args, kwargs):
    for gradient in gradients(optimizer):
        gradient.add_(1e-8).abs().max()


def look_only(optimizer, args, kwargs):
    for gradient in gradients(optimizer):
        gradient.flatten()[::7].abs().max()


WAYS = {"rng": sample_by_the_global_generator, "inplace": read_in_place, "look": look_only}

if __name__ == "__main__":
    way, script, *rest = sys.argv[1:]
    register_optimizer_step_pre_hook(WAYS[way])
    sys.argv = [script, *rest]
    runpy.run_path(script, run_name="__main__")
