"""The card for real: a short training under ``brickprof run`` on a GPU, what NVML says of it, and compute-sanitizer.

Skips without a GPU, without NVML and, for the sanitizer, where that is not installed.
"""

from __future__ import annotations

import json

import pytest
import torch
from launching import COMMAND, events, finished, recorded, run, script

import brickprof
from brickprof.errors import UsageError
from brickprof.launch import nvml, sanitizer
from brickprof.rules.story import Story

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

TRAIN = """
import sys, time, torch, torch.nn.functional as F
torch.manual_seed(0)
seconds = float(sys.argv[1])

class Tokens(torch.nn.Module):
    def __init__(self, vocabulary=4096, width=1024):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.blocks = torch.nn.Sequential(*(torch.nn.Sequential(
            torch.nn.LayerNorm(width), torch.nn.Linear(width, 4 * width), torch.nn.GELU(),
            torch.nn.Linear(4 * width, width)) for _ in range(4)))
        self.head = torch.nn.Linear(width, vocabulary)
    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))

model = Tokens().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
if "compiled" in sys.argv:
    model = torch.compile(model)
    with torch.autocast("cuda", torch.bfloat16):
        model(torch.zeros(8, 512, dtype=torch.long, device="cuda"))
until = time.monotonic() + seconds
while time.monotonic() < until:
    tokens = torch.randint(0, 4096, (8, 512), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.roll(-1, 1).flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("final", loss.item())
"""
OVERRUN = """
import torch, triton, triton.language as tl

@triton.jit
def write_past_the_end(out, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, 1.0)  # no mask

out = torch.empty(1000, device="cuda")
write_past_the_end[(8,)](out, 1000, SIZE=256)
torch.cuda.synchronize()
"""
UNWRITTEN = """
import torch, triton, triton.language as tl

@triton.jit
def read_unwritten(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at) + 1.0)

x, out = torch.empty(256, device="cuda"), torch.zeros(256, device="cuda")
read_unwritten[(1,)](x, out, SIZE=256)
torch.cuda.synchronize()
"""
BY_HAND = """
import torch
source = '''
extern "C" __global__ void racy(int* out) {
    __shared__ int row[128];
    row[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = row[127 - threadIdx.x];  // no barrier between the two
}
extern "C" __global__ void half_a_warp(int* out) {
    if (threadIdx.x <= 16) { __syncwarp(0xffff); out[threadIdx.x] = 1; }  // the last of them is not in the mask
}
'''
out = torch.zeros(128, dtype=torch.int32, device="cuda")
kernel = torch.cuda._compile_kernel(source, "KERNEL")
kernel(grid=(1, 1, 1), block=(THREADS, 1, 1), args=(out,))
torch.cuda.synchronize()
"""
SMALL_KERNELS = """
import time, torch
until = time.monotonic() + 40  # a window of the profiler is opened once a run has lasted for it to be cheap
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while time.monotonic() < until:
    y = model(torch.randn(8, 64, device="cuda"))
    for _ in range(150):
        y = (y.sin().add(0.1).mul(0.99).cos().sub(0.1)).tanh()
    loss = y.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    try:
        nvml.library().nvmlShutdown()
    except nvml.NoCards as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("card")
    script(folder, TRAIN)
    done = run(["t.py", "12"], folder, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, done


def card_events(folder, what):
    return [event for event in events(folder, "card") if event.fields["what"] == what]


def test_the_card_is_described(trained):
    folder, _ = trained
    (about,) = card_events(folder, "device")
    assert about.fields["name"] == torch.cuda.get_device_name(0)
    assert about.fields["known_by"] in ("listed", "grown"), about.fields
    assert about.fields["memory_total"] > 0 and about.fields["reads"], about.fields
    print(about.fields)


def test_samples_have_sane_values_and_lie_inside_the_training(trained):
    folder, _ = trained
    samples = card_events(folder, "sample")
    assert len(samples) >= 5, f"{len(samples)} lines in a training of 12 s"
    total = torch.cuda.get_device_properties(0).total_memory
    for event in samples:
        fields = event.fields
        print(event.step, fields)
        assert fields["looks"] >= 1
        assert 0 <= fields.get("utilisation", 0) <= 1
        assert 0 < fields["memory_used"] <= fields["memory_total"]
        assert abs(fields["memory_total"] - total) < 0.1 * total, (fields["memory_total"], total)
        assert 0 < fields.get("power", 1) < 2000 and 0 < fields.get("power_limit", 1) < 2500
        assert 0 < fields.get("temperature", 1) < 120
        assert 0 < fields.get("sm_clock", 1) < 5000
    assert samples[-1].step > samples[0].step, "looks are joined to steps"
    busiest = max(event.fields.get("utilisation", 0.0) for event in samples)
    assert busiest > 0.3, f"utilisation never went above {busiest:.0%}"


def test_a_healthy_short_run_is_not_accused(trained):
    folder, _ = trained
    told = json.loads((recorded(folder) / "diagnosis.json").read_text())
    contracts = {"C-UTILISATION-001", "C-THROTTLE-001", "C-CARDSHARE-001", "C-HARDWARE-001", "C-MEM-001"}
    found = [
        one for one in told["findings"] if one["contract"] in contracts and one["severity"] in ("error", "warning")
    ]
    assert not found, [one["symptom"] for one in found]
    verdicts = {one["id"]: (one["verdict"], one["observed"], one["why"]) for one in told["contracts"]}
    for name in sorted(contracts):
        print(name, verdicts[name])
    assert verdicts["C-HARDWARE-001"][0] == "PASS", verdicts["C-HARDWARE-001"]


def test_the_diagnosis_says_how_much_of_the_card_was_used(trained):
    folder, _ = trained
    told = json.loads((recorded(folder) / "diagnosis.json").read_text())["run"]
    print(told["cards"], told["mfu"])
    assert told["cards"][0]["looks"] >= 5
    used = told["mfu"]
    if used["ratio"] is None:
        pytest.skip(f"MFU not known: {used['why']}")
    assert 0 < used["ratio"] < 1 and used["how"] in ("counted", "estimated"), used


def test_compiled_code_makes_what_it_was_made_of(trained, tmp_path):
    script(tmp_path, TRAIN)
    done = run(["t.py", "12", "compiled"], tmp_path, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    plainly, compiled = (
        [event.fields for event in Story.of(brickprof.load(recorded(each))).events("operations")]
        for each in (trained[0], tmp_path)
    )
    print(plainly[0], compiled[0])
    assert compiled and all(each == plainly[0] for each in (*plainly, *compiled))
    assert plainly[0]["dtype"] == "bfloat16"
    told = json.loads((recorded(tmp_path) / "diagnosis.json").read_text())["run"]["mfu"]
    print(told)
    assert told["how"] == "counted" and told["dtype"] == "bfloat16" and 0 < told["ratio"] < 1, told


def test_doctor_shows_the_card(tmp_path):
    done = finished([*COMMAND, "doctor"], tmp_path, timeout=180)
    line = next(line for line in done.stdout.splitlines() if " card " in line)
    print(line)
    assert "utilisation" in line or "not told" in line, line


def test_memcheck_finds_a_kernel_that_writes_past_the_end(tmp_path):
    try:
        sanitizer.found()
    except UsageError as error:
        pytest.skip(error.message)
    script(tmp_path, OVERRUN)
    done = run(["--sanitizer", "memcheck", "t.py"], tmp_path, timeout=500)
    told = [event.fields for event in events(tmp_path, "sanitizer")]
    print(done.stderr[-3000:], *told, sep="\n")
    wrong = [fields for fields in told if fields.get("error") == "invalid"]
    assert wrong and "write_past_the_end" in wrong[0]["kernel"], told
    found = json.loads((recorded(tmp_path) / "diagnosis.json").read_text())["findings"]
    assert any(one["root_cause"] == "out-of-bounds" and "write_past_the_end" in one["brick"] for one in found), found


@pytest.mark.parametrize(
    ("tool", "text", "kernel", "error", "cause"),
    [
        ("initcheck", UNWRITTEN, "read_unwritten", "uninitialised", "uninitialised-read"),
        ("racecheck", BY_HAND.replace("THREADS", "128"), "racy", "race", "kernel-race"),
        ("synccheck", BY_HAND.replace("THREADS", "32"), "half_a_warp", "barrier", "kernel-race"),
    ],
)
def test_the_other_tools_name_the_kernel_at_fault(tmp_path, tool, text, kernel, error, cause):
    try:
        sanitizer.found()
    except UsageError as no_tool:
        pytest.skip(no_tool.message)
    if "_compile_kernel" in text and not hasattr(torch.cuda, "_compile_kernel"):
        pytest.skip("this torch compiles no kernels by hand")
    script(tmp_path, text.replace("KERNEL", kernel))
    done = run(["--sanitizer", tool, "t.py"], tmp_path, timeout=500)
    told = [event.fields for event in events(tmp_path, "sanitizer")]
    print(done.stderr[-3000:], *told, sep="\n")
    for log in recorded(tmp_path).glob("sanitizer-*.log"):
        print(log.read_text()[:6000])
    assert any(fields.get("error") == error and kernel in fields.get("kernel", "") for fields in told), told
    found = json.loads((recorded(tmp_path) / "diagnosis.json").read_text())["findings"]
    assert any(one["root_cause"] == cause and kernel in one["brick"] for one in found), found


def test_a_device_that_waits_for_launches_is_a_note(tmp_path):
    script(tmp_path, SMALL_KERNELS)
    done = run(["--overhead", "20%", "t.py"], tmp_path, timeout=300)  # level deep would hold the launches up itself
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads((recorded(tmp_path) / "diagnosis.json").read_text())["findings"]
    found = [one for one in told if one["contract"] == "C-UTILISATION-001"]
    print(*found, sep="\n")
    assert [(one["root_cause"], one["severity"]) for one in found] == [("launch-storm", "info")]
