"""``brickprof run --otlp``: a real script, a real receiver, and receivers that are none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter

import pytest
from telemetry_cases import http_receiver

SCRIPT = """
import sys, time, torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
if len(sys.argv) > 1:
    raise RuntimeError(sys.argv[1])
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def brickprof_run(script, *options, arguments=(), **variables):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "brickprof", "run", "-o", script.parent / "out", *options, script, *arguments],
        capture_output=True, text=True, timeout=180, check=False, env=clean | variables,
    )  # fmt: skip
    return done, time.monotonic() - start


def ancestry(spans):
    """How often each chain of names, from a span up to the run, occurs."""
    by_id = {span.span_id: span for span in spans}
    chains = Counter()
    for span in spans:
        chain = [span.name]
        while span.parent_span_id:
            span = by_id[span.parent_span_id]
            chain.append(span.name)
        chains[tuple(chain)] += 1
    return chains


@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_run_arrives_whole_and_nested(script, how):
    with http_receiver() as received:
        if how == "option":
            done, _ = brickprof_run(script, "--otlp", received.url)
        else:
            done, _ = brickprof_run(script, OTEL_EXPORTER_OTLP_ENDPOINT=received.url)
    assert done.returncode == 0, done.stderr
    chains = ancestry(received.spans())
    assert chains["run",] == 1
    assert chains["step", "run"] == 4
    assert chains["forward", "step", "run"] == 4
    assert chains["backward", "step", "run"] == 4
    assert chains["SGD optimizer", "step", "run"] == 4
    assert chains["0", "forward", "step", "run"] > 0
    assert all(chain[-1] == "run" for chain in chains)


def test_an_exception_of_the_script_is_on_the_run(script):
    with http_receiver() as received:
        done, _ = brickprof_run(script, "--otlp", received.url, arguments=["bad batch"])
    assert done.returncode == 1
    [root] = [span for span in received.spans() if span.name == "run"]
    assert root.status.code == 2
    assert {event.name for event in root.events} >= {"exception"}
    [said] = [event for event in root.events if event.name == "exception"]
    assert {item.key: item.value.string_value for item in said.attributes}["exception.type"] == "RuntimeError"


@pytest.mark.parametrize("listening", [False, True])
def test_an_endpoint_that_is_down_or_deaf_changes_nothing(script, listening):
    plain, usual = brickprof_run(script)
    with socket.create_server(("127.0.0.1", 0)) as server:
        if not listening:
            server.close()
            address = "127.0.0.1:9"
        else:
            address = "{}:{}".format(*server.getsockname())
        done, took = brickprof_run(script, "--otlp", f"http://{address}")
    assert done.returncode == plain.returncode == 0
    assert done.stdout == plain.stdout
    assert took < usual + 15
    assert "Traceback" not in done.stderr
    assert "OTLP" in done.stderr
