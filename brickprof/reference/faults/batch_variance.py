"""A policy is trained on its own samples. Their probabilities are taken one line at a time, the new ones for the
whole batch at once; the library picks another product for each shape, bf16 adds the rest, and the ratio of new to old
is not one even before the first update."""

import sys

import torch
from torch import nn

TRUTH = {
    "id": "batch-variance",
    "row": 62,
    "title": "log-probabilities depend on the size of the batch",
    "family": "other",
    "kind": "silent",
    "contracts": ["DIM-001", "C-PRECISION-001"],
    "root_causes": ["bf16-precision-loss"],
    "bricks": ["body", "head"],
    "first_step": 0,
    "needs": "gpu",
}

if not torch.cuda.is_available():
    print("this script needs a CUDA device; nothing was done")
    sys.exit(0)

ACTIONS, WIDTH, BATCH = 512, 1024, 512


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.head = nn.Linear(WIDTH, ACTIONS)

    def forward(self, x):
        return self.head(self.body(x)).log_softmax(-1)


@torch.no_grad()
def rollout(policy, states):
    """One state at a time, as the environment gives them."""
    rows = [policy(state[None])[0] for state in states]
    logp = torch.stack(rows)
    actions = torch.distributions.Categorical(logits=logp.float()).sample()
    return actions, logp.gather(1, actions[:, None]).squeeze(1)


torch.manual_seed(0)
policy = Policy().cuda().bfloat16()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
wanted = torch.randn(32, ACTIONS, device="cuda")
for step in range(40):
    states = torch.randn(BATCH, 32, device="cuda", dtype=torch.bfloat16)
    actions, old = rollout(policy, states)
    reward = (states.float() @ wanted).gather(1, actions[:, None]).squeeze(1)
    advantage = (reward - reward.mean()) / reward.std()
    new = policy(states).gather(1, actions[:, None]).squeeze(1)
    ratio = (new - old).float().exp()
    loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        drift = (ratio - 1).abs().max().item()
        print(f"step {step} reward {reward.mean().item():.4f} largest |ratio - 1| {drift:.4f}")
