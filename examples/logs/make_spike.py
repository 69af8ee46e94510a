"""Writes a log of the shape that the spike of BLOOM-176B has in its training log: python make_spike.py > spike.log

Not the real log: the numbers are made here. A large run goes well, the gradient norm rises for four iterations while
the loss still looks as always, then the loss jumps, and comes back.
"""

from __future__ import annotations

import math

FIRST, RISES, LAST = 31_100, 31_214, 31_260


def norm(iteration: int) -> float:
    calm = 0.24 + 0.03 * math.sin(iteration * 12.9898)
    since = iteration - RISES
    if since < 0:
        return calm
    return (
        [1.9, 14.2, 120.5, 960.4, 410.0, 88.0, 31.0, 9.7][since]
        if since < 8
        else calm + 6.0 * math.exp(-(since - 7) / 4)
    )


def loss(iteration: int) -> float:
    calm = 2.2 - 2e-5 * (iteration - FIRST) + 0.015 * math.sin(iteration * 78.233)
    since = iteration - RISES - 4
    return calm if since < 0 else calm + 2.9 * math.exp(-since / 7)


for iteration in range(FIRST, LAST + 1):
    print(
        f" iteration {iteration:8d}/  115311 | consumed samples: {iteration * 2048:12d} |"
        f" consumed tokens: {iteration * 2048 * 2048:16d} | elapsed time per iteration (s): 104.{iteration % 90:02d} |"
        f" learning rate: 5.970E-05 | global batch size:  2048 | lm loss: {loss(iteration):.6E} |"
        f" grad norm: {norm(iteration):.3f} | num zeros: 0.0 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
    )
