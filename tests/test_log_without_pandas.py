"""Logs are read without pandas, which takes longer to load than most of them to read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LOGS = {
    "text.log": "".join(f"step {n} | loss {3 - n / 200:.4f} | norm 1.0 [1.5, 2.5]\n" for n in range(200)),
    "lines.jsonl": "".join(f'{{"step": {n}, "loss": {3 - n / 200}}}\n' for n in range(200)),
    "lists.jsonl": "".join(f'{{"step": {n}, "loss": [{3 - n / 200}, 2.5], "lr": [1e-4]}}\n' for n in range(200)),
    "table.csv": "step,loss,note\n" + "".join(f"{n},{3 - n / 200},{'' if n % 2 else 'x'}\n" for n in range(200)),
    "state.json": json.dumps({"log_history": [{"step": n, "loss": 3 - n / 99} for n in range(99)]}),
}


@pytest.mark.parametrize("name", LOGS)
def test_pandas_is_not_loaded_to_read_a_log(name, tmp_path):
    (tmp_path / name).write_text(LOGS[name])
    text = "import sys; from brickprof import logs; print(logs.read(sys.argv[1]).last_step, 'pandas' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path / name)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["98" if name == "state.json" else "199", "False"]
