import torch
import torch.nn as nn

TRUTH = {
    "id": "blind-maml-sine",
    "title": "MAML on sine tasks: three inner steps, second-order outer gradient, tasks batched",
    "family": "mlp",
    "needs": "cpu",
    "trap": "autograd.grad inside the step with create_graph, every batch is a new task, noisy outer loss, loss before adaptation stays high",
}


class MetaNet(nn.Module):
    """MLP whose weights can be replaced by one set per task."""

    def __init__(self, hidden=40):
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(1, hidden)), nn.Parameter(torch.randn(hidden))
        self.w2, self.b2 = (
            nn.Parameter(torch.randn(hidden, hidden) * (2 / hidden) ** 0.5),
            nn.Parameter(torch.zeros(hidden)),
        )
        self.w3, self.b3 = nn.Parameter(torch.randn(hidden, 1) * hidden**-0.5), nn.Parameter(torch.zeros(1))

    def task_weights(self, n):
        return [p.unsqueeze(0).expand(n, *p.shape) for p in (self.w1, self.b1, self.w2, self.b2, self.w3, self.b3)]

    def forward(self, x, w):
        h = torch.tanh(x @ w[0] + w[1].unsqueeze(1))
        h = torch.tanh(h @ w[2] + w[3].unsqueeze(1))
        return h @ w[4] + w[5].unsqueeze(1)


class SineTasks:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def draw(self, n_tasks, shots):
        amp = 0.5 + 1.5 * torch.rand(n_tasks, 1, 1, generator=self.g)
        ph = 3.1416 * torch.rand(n_tasks, 1, 1, generator=self.g)
        x = torch.rand(n_tasks, 2 * shots, 1, generator=self.g) * 6 - 3
        y = amp * torch.sin(x + ph)
        return x[:, :shots], y[:, :shots], x[:, shots:], y[:, shots:]


def adapt(net, x, y, lr, steps, second_order=True):
    w = net.task_weights(len(x))
    for _ in range(steps):
        loss = ((net(x, w) - y) ** 2).mean((1, 2)).sum()
        grads = torch.autograd.grad(loss, w, create_graph=second_order)
        w = [p - lr * g for p, g in zip(w, grads)]
    return w


def main():
    torch.manual_seed(0)
    net = MetaNet()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    steps = 500
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps, eta_min=1e-4)
    train, test = SineTasks(0), SineTasks(1)
    avg = None
    for it in range(steps):
        xs, ys, xq, yq = train.draw(16, 10)
        w = adapt(net, xs, ys, lr=0.03, steps=3)
        loss = ((net(xq, w) - yq) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        opt.step()
        sched.step()
        avg = loss.item() if avg is None else 0.95 * avg + 0.05 * loss.item()
        if it % 50 == 0 or it == steps - 1:
            xs, ys, xq, yq = test.draw(100, 10)
            before = ((net(xq, net.task_weights(100)) - yq) ** 2).mean().item()
            w = adapt(net, xs, ys, 0.03, 3, second_order=False)
            after = ((net(xq, w) - yq) ** 2).mean().item()
            print(f"it {it} outer {avg:.4f} test before {before:.4f} after {after:.4f}")


main()
