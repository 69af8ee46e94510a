"""REINFORCE in a corridor: the policy learns to walk to the right. The loss is no measure of progress."""

import torch
from torch import nn
from torch.distributions import Categorical

TRUTH = {
    "id": "reinforce-corridor",
    "title": "policy gradient with a baseline",
    "family": "other",
    "trap": "a loss around zero, of either sign, noisy, that does not fall while the return rises",
    "needs": "cpu",
}

LENGTH, HORIZON = 7, 14


def play(policy, episodes):
    """Walks all episodes at once; log-probabilities, and the return from each step on."""
    place = torch.zeros(episodes, dtype=torch.long)
    logs, rewards = [], []
    for _ in range(HORIZON):
        choice = Categorical(logits=policy(nn.functional.one_hot(place, LENGTH).float()))
        move = choice.sample()
        logs.append(choice.log_prob(move))
        place = (place + 2 * move - 1).clamp(0, LENGTH - 1)
        rewards.append((place == LENGTH - 1).float())
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    return torch.stack(logs), returns


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(LENGTH, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for update in range(60):
        logs, returns = play(policy, 16)
        advantage = returns - returns.mean(dim=1, keepdim=True)
        loss = -(logs * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 10 == 0:
            print(f"update {update} loss {loss.item():+.4f} return {returns[0].mean().item():.2f}")


if __name__ == "__main__":
    main()
