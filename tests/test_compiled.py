"""What was compiled is told with its function and its line: by the probe, on real code."""

from __future__ import annotations

import subprocess
import sys

from launching import recorded, run, script

from brickprof.records import Event
from brickprof.run import Run

SCRIPT = """\
import torch
torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.linear(x)

def mix(x):
    return x * 2 + 1

net = Net()
{compiled}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    loss = net(mix(torch.randn(8, 4))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def told(folder, compiled):
    script(folder, SCRIPT.format(compiled=compiled))
    done = run(["t.py"], folder, timeout=120)
    assert done.returncode == 0, done.stderr
    records = Run.open(recorded(folder)).records()
    return [record.fields for record in records if isinstance(record, Event) and record.kind == "compile"]


def test_functions_and_modules_are_told_with_their_lines(tmp_path):
    found = told(tmp_path, "mix = torch.compile(mix, backend='eager'); net = torch.compile(net, backend='eager')")
    assert {"model": "Net"} in found
    assert {"function": "mix", "site": "t.py:11"} in found
    assert {"function": "Net.forward", "site": "t.py:8"} in found
    assert len(found) == 3, found


def test_where_nothing_is_compiled_nothing_is_told_and_dynamo_is_not_loaded(tmp_path):
    assert told(tmp_path, "") == []
    asked = "import sys, brickprof.probes.compiled as c; assert c.made() == []; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "False\n", done.stderr
