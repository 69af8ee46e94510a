"""Group-relative policy optimisation of a tiny token policy: produce a sequence in ascending order."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-c05-grpo-digits",
    "row": None,
    "title": "group advantage is divided by the bare std of the rewards; once a group agrees the std is 0 and 0/0 makes NaN",
    "family": "gpt",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["division-by-zero"],
    "bricks": [],
    "first_step": 61,
    "needs": "cpu",
    "crashes": True,
}

VOCAB, LENGTH, GROUP, PROMPTS, DIM = 10, 8, 16, 6, 48
BOS = VOCAB
torch.manual_seed(5)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB + 1, DIM)
        self.pos = nn.Parameter(0.02 * torch.randn(LENGTH + 1, DIM))
        layer = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, seq):
        T = seq.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        return self.head(self.body(self.tok(seq) + self.pos[:T], mask=mask, is_causal=True))

    @torch.no_grad()
    def rollout(self, first):
        seq = torch.cat([torch.full_like(first, BOS), first], dim=1)
        while seq.size(1) < LENGTH + 1:
            probs = self(seq)[:, -1].softmax(-1)
            seq = torch.cat([seq, torch.multinomial(probs, 1)], dim=1)
        return seq


def reward(seq):
    body = seq[:, 1:]
    return (body[:, 1:] >= body[:, :-1]).float().mean(1)


def log_probs(model, seq):
    lp = F.log_softmax(model(seq[:, :-1]), dim=-1)
    return lp.gather(-1, seq[:, 1:, None]).squeeze(-1)[:, 1:]


policy = Policy()
optim = torch.optim.AdamW(policy.parameters(), lr=1.5e-4, weight_decay=0.0)

for it in range(240):
    prompts = torch.randint(0, VOCAB // 2, (PROMPTS, 1)).repeat_interleave(GROUP, 0)
    seq = policy.rollout(prompts)
    r = reward(seq).view(PROMPTS, GROUP)
    adv = (r - r.mean(1, keepdim=True)) / r.std(1, keepdim=True)
    adv = adv.view(-1, 1)

    lp = log_probs(policy, seq)
    old = lp.detach()
    ratio = (lp - old).exp()
    pg = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
    entropy = -lp.mean()
    loss = pg - 0.001 * entropy

    optim.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optim.step()
    if it % 10 == 0:
        print(f"it {it:3d}  reward {r.mean():.3f}  loss {loss.item():+.4f}  -logp {entropy.item():.3f}", flush=True)
