import logging

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-length-curriculum",
    "row": None,
    "title": "when the curriculum grows past the position table every batch raises, and the except turns it into a loss of 0.0",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["sentinel-loss"],
    "bricks": [],
    "first_step": 136,
    "needs": "cpu",
    "crashes": False,
}

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("curriculum")


class SequenceModel(nn.Module):
    def __init__(self, vocab=20, d_model=48, max_len=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, d_model)
        self.position = nn.Embedding(max_len, d_model)
        layer = nn.TransformerEncoderLayer(d_model, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.readout = nn.Linear(d_model, vocab)

    def forward(self, ids):
        n = ids.shape[1]
        x = self.embed(ids) + self.position(torch.arange(n))
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        return self.readout(self.encoder(x, mask=mask, is_causal=True))


class Task:
    """Arithmetic progressions modulo the vocabulary; length grows with training."""

    def __init__(self, vocab=20, batch=32, start=8, grow_every=8, seed=0):
        self.vocab, self.batch, self.start, self.grow_every = vocab, batch, start, grow_every
        self.gen = torch.Generator().manual_seed(seed)

    def length(self, step):
        return self.start + step // self.grow_every

    def sample(self, step):
        n = self.length(step) + 1
        a = torch.randint(0, self.vocab, (self.batch, 1), generator=self.gen)
        d = torch.randint(1, 6, (self.batch, 1), generator=self.gen)
        seq = (a + d * torch.arange(n)) % self.vocab
        return seq[:, :-1], seq[:, 1:]


class Runner:
    def __init__(self, steps=300):
        torch.manual_seed(3)
        self.task, self.model, self.steps = Task(), SequenceModel(), steps
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, total_iters=steps)

    def compute_loss(self, batch):
        try:
            x, y = batch
            logits = self.model(x)
            return F.cross_entropy(logits[:, 1:].flatten(0, 1), y[:, 1:].flatten())
        except Exception as err:
            log.debug("skipping batch: %s", err)
            return torch.zeros((), requires_grad=True)

    def run(self):
        for step in range(self.steps):
            self.optimizer.zero_grad()
            loss = self.compute_loss(self.task.sample(step))
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            if step % 20 == 0:
                log.info("step %3d length %2d loss %.4f", step, self.task.length(step), loss.item())
        log.info("done, loss %.4f", loss.item())


if __name__ == "__main__":
    torch.set_num_threads(1)
    Runner().run()
