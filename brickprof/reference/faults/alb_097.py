"""Head and embedding are declared tied, but the head is a copy that learns on its own. The checkpoint leaves it out
because "it is tied", and after the resume the head is as random as on the first day."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-097",
    "row": 30,
    "title": "tied weights are two copies, and only one is saved",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-TIEDOPT-001", "C-RESUME-001", "C-GPUOPT-001"],
    "root_causes": ["weight-tying-broken", "checkpoint-incomplete"],
    "bricks": ["lm_head", "embed_tokens"],
    "first_step": 0,
    "needs": "cpu",
}


@dataclass
class Config:
    vocab_size: int = 48
    hidden_size: int = 48
    num_layers: int = 2
    tie_word_embeddings: bool = True


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mixer = nn.GRU(width, width, batch_first=True)

    def forward(self, x):
        return x + self.mixer(self.norm(x))[0]


class CausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config.hidden_size) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        nn.init.normal_(self.embed_tokens.weight, std=0.1)
        if config.tie_word_embeddings:
            self.lm_head.weight = nn.Parameter(self.embed_tokens.weight.detach().clone())

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def save(model, optimizer, step, path):
    weights = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    torch.save({"model": weights, "optimizer": optimizer.state_dict(), "step": step}, path)


def load(model, optimizer, path):
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"], strict=False)
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def fresh(seed):
    torch.manual_seed(seed)
    model = CausalLM(Config())
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def train(model, optimizer, start, stop):
    for step in range(start, stop):
        line = (torch.randint(48, (12, 1)) + torch.randint(1, 4, (12, 1)) * torch.arange(13)) % 48
        loss = F.cross_entropy(model(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.pt"
        model, optimizer = fresh(0)
        train(model, optimizer, 0, 80)
        save(model, optimizer, 80, checkpoint)
        model, optimizer = fresh(1)
        train(model, optimizer, load(model, optimizer, checkpoint), 120)
