"""Q-learning with a replay memory and a target network that is copied over now and then and never trained itself."""

import copy
import random

import torch
from torch import nn

TRUTH = {
    "id": "q-learning-target",
    "title": "replay memory and target network",
    "family": "other",
    "trap": "the target network never moves by gradient; the loss rises when it is copied over",
    "needs": "cpu",
}


class Grid:
    """Walk on a 5x5 grid to the far corner; a step costs a little."""

    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.x, self.y, self.age = self.rng.randrange(3), self.rng.randrange(3), 0

    def state(self):
        return [self.x / 2 - 1, self.y / 2 - 1]

    def step(self, move):
        dx, dy = ((1, 0), (-1, 0), (0, 1), (0, -1))[move]
        self.x, self.y, self.age = min(4, max(0, self.x + dx)), min(4, max(0, self.y + dy)), self.age + 1
        won = self.x == 4 and self.y == 4
        return (1.0 if won else -0.02), won, won or self.age >= 30


def learn(q, target, batch, gamma=0.95):
    states, moves, rewards, nexts, won = (torch.tensor(part) for part in zip(*batch, strict=True))
    with torch.no_grad():
        goal = rewards + gamma * target(nexts).max(1).values * (1 - won.float())
    said = q(states).gather(1, moves[:, None]).squeeze(1)
    return nn.functional.smooth_l1_loss(said, goal)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = random.Random(0)
    q = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4))
    target = copy.deepcopy(q)
    optimizer = torch.optim.Adam(q.parameters(), lr=2e-3)
    memory, grid, won_total = [], Grid(rng), 0
    for step in range(900):
        state = grid.state()
        if rng.random() < max(0.1, 1 - step / 500):
            move = rng.randrange(4)
        else:
            with torch.no_grad():
                move = int(q(torch.tensor([state])).argmax())
        reward, won, over = grid.step(move)
        memory.append((state, move, reward, grid.state(), won))
        won_total += won
        if over:
            grid.reset()
        if step >= 100 and step % 3 == 0:
            loss = learn(q, target, rng.sample(memory, 32))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 60 == 0:
            target.load_state_dict(q.state_dict())
        if step % 150 == 149:
            print(f"step {step} goals reached {won_total} loss {loss.item():.5f}")
            won_total = 0


if __name__ == "__main__":
    main()
