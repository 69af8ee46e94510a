"""Several processes, one run: ranks around us, ranks below us, and an exporter beside us."""

import http.server
import json
import os
import socketserver
import subprocess
import sys
import threading
import time

import launching
import pytest

from brickprof.journal.layout import rank_folders
from brickprof.launch.folder import launcher

TRAINING = """
import sys, torch
torch.set_num_threads(1)
def train(rank=0, steps=3):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
"""


def ranks(tmp_path):
    return list(rank_folders(launching.recorded(tmp_path)))


@pytest.mark.slow
def test_us_around_torchrun(tmp_path):
    launching.script(tmp_path, TRAINING + "train()\n")
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    done = launching.run(["torchrun", "--standalone", "--nproc-per-node", "2", "t.py"], tmp_path, PATH=path)
    assert done.returncode == 0, done.stderr
    assert launching.recorded(tmp_path).name.startswith("t-")
    assert ranks(tmp_path) == [0, 1]


@pytest.mark.slow
def test_torchrun_around_us(tmp_path):
    launching.script(tmp_path, TRAINING + "train()\nprint('trained')\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = launching.finished([*command, "-m", "brickprof", "run", "t.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == 2
    assert ranks(tmp_path) == [0, 1]
    assert len(launching.events(tmp_path, "exited")) == 2
    assert done.stderr.count("PASS") == 1
    assert (launching.recorded(tmp_path) / "diagnosis.json").exists()


@pytest.mark.slow
def test_the_rank_that_speaks_has_waited_for_the_others(tmp_path):
    late = "import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(3)\n"
    broken = "    model = torch.nn.Linear(2, 1)\n    model.weight.data.fill_(float('nan'))\n"
    rest = broken + "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    for _ in range(3):\n"
    rest += "        model(torch.ones(2, 2)).mean().backward()\n        optimizer.step()\n"
    launching.script(tmp_path, TRAINING + late + rest + "else:\n    train()\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = launching.finished([*command, "-m", "brickprof", "run", "t.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FAIL" in done.stderr and "nan" in done.stderr


@pytest.mark.slow
def test_processes_that_train_below_the_script_are_ranks(tmp_path):
    text = TRAINING + (
        "import subprocess\n"
        "import torch.multiprocessing as mp\n"
        "if __name__ == '__main__':\n"
        "    if 'below' in sys.argv:\n"
        "        train()\n"
        "    else:\n"
        "        mp.spawn(train, nprocs=1)\n"
        "        subprocess.run([sys.executable, 't.py', 'below'], check=True)\n"
    )
    launching.script(tmp_path, text)
    done = launching.run(["t.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert ranks(tmp_path) == [0, 1]


def test_a_job_is_the_same_for_all_its_ranks_and_restarts(tmp_path):
    """The key of a job comes from the launcher, whatever stands between it and the rank."""
    code = "import os; from brickprof.launch.folder import launcher; print(launcher(os.environ).key)"
    ours = launching.environment(LOCAL_RANK="0", RANK="0", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="job")
    keys = set()
    for rank, port, wrapper in (
        ("0", "1", []),
        ("1", "1", ["env"]),
        ("1", "2", ["sh", "-c", '"$0" "$@"; true']),
    ):
        environment = {**ours, "LOCAL_RANK": rank, "RANK": rank, "MASTER_PORT": port}
        keys.add(subprocess.check_output([*wrapper, sys.executable, "-c", code], env=environment, timeout=60))
    assert len(keys) == 1
    assert launcher(launching.environment()) is None
    assert launcher({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}).local_rank == 1


class Receiver(http.server.BaseHTTPRequestHandler):
    delay = 0.0
    bodies: list[bytes] = []  # noqa: RUF012

    def do_POST(self):
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(self.delay)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint():
    class Own(Receiver):
        bodies: list[bytes] = []  # noqa: RUF012

    class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Own)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", Own
    server.shutdown()
    server.server_close()


def test_spans_reach_an_endpoint(tmp_path, endpoint):
    url, receiver = endpoint
    done = launching.run(["--otlp", url, "-c", "pass"], tmp_path)
    assert done.returncode == 0
    assert "OTLP" not in done.stderr
    assert any(b"brickprof" in body for body in receiver.bodies)


@pytest.mark.parametrize("kind", ["down", "slow"])
def test_an_endpoint_that_is_down_or_slow_changes_nothing(tmp_path, endpoint, kind):
    url, receiver = endpoint
    receiver.delay = 60.0
    where = url if kind == "slow" else "http://127.0.0.1:9"
    done = launching.run(["--otlp", where, "-c", "raise SystemExit(4)"], tmp_path)
    assert done.returncode == 4
    ended, noted = launching.events(tmp_path, "exited")[0], launching.events(tmp_path, "note")[0]
    assert (noted.time_ns - ended.time_ns) / 1e9 < 6.5
    assert "OTLP export" in noted.fields["text"]
    assert done.stderr.count("OTLP export to") == 1
    assert json.loads((launching.recorded(tmp_path) / "diagnosis.json").read_text())["schema"] == 1
