"""A topic project that starts from word vectors. nn.Embedding.from_pretrained freezes its weight unless told
otherwise, the vectors are random placeholders, and the optimizer that is to train them all never moves them."""

import argparse
import logging

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-project-frozen-vectors",
    "row": None,
    "title": "from_pretrained freezes the embedding",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001"],
    "root_causes": ["parameters-frozen"],
    "bricks": ["vectors"],
    "first_step": 0,
    "needs": "cpu",
}

log = logging.getLogger("topics")


class Vocabulary:
    def __init__(self, size, topics):
        self.size, self.topics = size, topics
        self.topic_of = torch.randperm(size) % topics

    def documents(self, count, length):
        topics = torch.randint(0, self.topics, (count,))
        ids = torch.randint(0, self.size, (count, length))
        members = [torch.nonzero(self.topic_of == t).flatten() for t in range(self.topics)]
        for row, topic in zip(ids, topics.tolist(), strict=True):
            places = torch.randperm(length)[: length // 2]
            row[places] = members[topic][torch.randint(0, len(members[topic]), (length // 2,))]
        return TensorDataset(ids, topics)


def load_vectors(size, dim):
    """The real file is not there yet: small random ones, to be trained."""
    return 0.1 * torch.randn(size, dim)


class TopicModel(nn.Module):
    def __init__(self, vectors, hidden, topics, dropout=0.1):
        super().__init__()
        self.vectors = nn.Embedding.from_pretrained(vectors)
        self.lstm = nn.LSTM(vectors.shape[1], hidden, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, topics)

    def forward(self, ids):
        states, _ = self.lstm(self.vectors(ids))
        return self.out(self.dropout(states.mean(1)))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = total = 0
    for ids, topics in loader:
        right += int((model(ids).argmax(1) == topics).sum())
        total += len(topics)
    model.train()
    return right / total


def train(model, loader, held_out, options):
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=options.epochs // 2, gamma=0.3)
    for epoch in range(options.epochs):
        losses = []
        for ids, topics in loader:
            loss = F.cross_entropy(model(ids), topics)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        log.info("epoch %d loss %.4f accuracy %.3f", epoch, sum(losses) / len(losses), evaluate(model, held_out))


def main(options):
    torch.manual_seed(options.seed)
    words = Vocabulary(300, topics=5)
    loader = DataLoader(words.documents(960, 12), options.batch, shuffle=True)
    held_out = DataLoader(words.documents(200, 12), 100)
    model = TopicModel(load_vectors(300, 24), options.hidden, 5)
    log.info("%d parameters", sum(p.numel() for p in model.parameters()))
    train(model, loader, held_out, options)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--clip", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    torch.set_num_threads(1)
    main(parser.parse_args())
