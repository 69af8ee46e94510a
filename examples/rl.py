"""REINFORCE on a line: the agent learns to walk to the goal, while the loss hovers around zero."""

import argparse

import torch
from torch import nn

CELLS, GOAL, PATIENCE = 9, 7, 16


class Policy(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.see = nn.Linear(CELLS, width)
        self.act = nn.Linear(width, 3)

    def forward(self, place: torch.Tensor) -> torch.distributions.Categorical:
        seen = nn.functional.one_hot(place, CELLS).float()
        return torch.distributions.Categorical(logits=self.act(self.see(seen).tanh()))


def play(policy: Policy, games: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities, entropies and rewards of one batch of games, each (time, game)."""
    place = torch.randint(CELLS, (games,), device=device)
    logs, entropies, rewards = [], [], []
    for _ in range(PATIENCE):
        choice = policy(place)
        move = choice.sample()
        place = (place + move - 1).clamp(0, CELLS - 1)
        logs.append(choice.log_prob(move))
        entropies.append(choice.entropy())
        rewards.append((place == GOAL).float())
    return torch.stack(logs), torch.stack(entropies), torch.stack(rewards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument("--games", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    policy = Policy().to(args.device)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=args.lr)

    for update in range(args.updates):
        logs, entropies, rewards = play(policy, args.games, args.device)
        to_come = rewards.flip(0).cumsum(0).flip(0)
        advantage = to_come - to_come.mean(dim=1, keepdim=True)
        loss = -(logs * advantage).mean() - 0.01 * entropies.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 10 == 0 or update == args.updates - 1:
            reward = rewards.sum(0).mean().item()
            print(f"update {update:3d}  loss {loss.item():+.6f}  reward {reward:.2f} of {PATIENCE}", flush=True)


if __name__ == "__main__":
    main()
