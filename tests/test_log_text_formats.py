"""Every text format, by a small log of its shape: which reader takes it, and what it reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from brickprof import logs
from brickprof.logs import Log


def _read(folder: Path, text: str, name: str = "train.log") -> Log:
    path = folder / name
    path.write_bytes(text.encode())
    return logs.read(path)


def _points(log: Log, name: str) -> list[tuple[int, float]]:
    series = log.series[name]
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def _lines(count: int, line: Callable[[int], str]) -> str:
    return "".join(line(number) + "\n" for number in range(count))


def test_llm_c_reads_what_it_measures_and_not_how_unusual_it_is(tmp_path: Path) -> None:
    table = (
        "+-----------------------+--------------------+\n"
        "| Parameter             | Value              |\n"
        "+-----------------------+--------------------+\n"
        "| total batch size      | 524288             |\n"
        "| learning rate (LR)    | 6.000000e-04       |\n"
        "| LR scheduler          | cosine             |\n"
        "| num_parameters        | 124475904          |\n"
    )
    steps = _lines(
        4,
        lambda n: (
            f"step {n + 1:4d}/19560 | loss {11 - n:.6f} ({'+nan' if n < 2 else '+1.25'}z)| norm {5.1 + n:.4f} "
            f"({'+nan' if n < 2 else '-0.10'}z)| lr {(n + 1) * 1e-6:.2e} | 3617.07 ms | 37.3% bf16 MFU | 144844 tok/s"
        ),
    )
    log = _read(tmp_path, table + "val loss 11.008742\n" + steps + "val loss 4.5\n")
    assert log.format == "llm_c"
    assert _points(log, "loss") == [(1, 11.0), (2, 10.0), (3, 9.0), (4, 8.0)]
    assert _points(log, "val loss") == [(0, 11.008742), (4, 4.5)]
    assert np.isfinite(log.series["norm"].values).all()
    assert log.series["lr"].role == "lr"
    assert log.series["step time"].values[0] == pytest.approx(3.61707)
    assert {series.role for series in log.series.values() if not np.isfinite(series.values).all()} == set()
    stated = {
        key: value for fact in log.facts if fact.kind == "setting" for key, value in fact.fields["values"].items()
    }
    assert stated == {
        "total batch size": 524288, "learning rate (LR)": 6e-4, "LR scheduler": "cosine", "num_parameters": 124475904,
    }  # fmt: skip


def test_llm_c_main_log(tmp_path: Path) -> None:
    log = _read(
        tmp_path,
        "s:0 tel:11.0\n"
        + _lines(5, lambda n: f"s:{n} trl:{11 - n:.4f} lr:0.00000{n} norm:{15 - n:.2f}")
        + "s:4 eval:0.25\n",
    )
    assert log.format == "llm_c"
    assert log.loss is not None
    assert log.loss.name == "trl"
    assert len(log.loss) == 5
    assert log.series["eval"].role == "quality"
    assert log.series["tel"].role == "eval_loss"


def test_half_a_line_that_the_scheduler_wrote_into_is_no_row(tmp_path: Path) -> None:
    whole = (
        "step {0}/19560 | loss nan (+nanz)| norm nan (+nanz)| lr 8.5e-05 | 3616.10 ms | 37.3% bf16 MFU | 1448 tok/s\n"
    )
    text = "".join(whole.format(step) for step in range(1, 5))
    glued = "step 5/19560 | loss nan (+nanz)| norm nan (+nanz)| lr 8.5e-05 | 3616.slurmstepd: error: *** JOB 7 ON g2 "
    log = _read(tmp_path, text + glued + "CANCELLED AT 2024-10-10T18:59:58 DUE TO TIME LIMIT ***\n")
    assert log.series["loss"].steps.tolist() == [1, 2, 3, 4]
    assert np.isnan(log.series["loss"].values).all()
    ended = [fact for fact in log.facts if fact.kind == "ended"]
    assert [(fact.fields["how"], fact.line) for fact in ended] == [("time-limit", 5)]


def test_nanogpt(tmp_path: Path) -> None:
    log = _read(
        tmp_path,
        "step 0: train loss 10.9, val loss 10.8\n"
        + _lines(4, lambda n: f"iter {n * 10}: loss {'nan' if n == 3 else 9.5 - n}, time 460.33ms, mfu 48.08%"),
    )
    assert log.format == "nanogpt"
    assert log.loss is not None
    assert log.loss.name == "loss"
    assert log.loss.steps.tolist() == [0, 10, 20, 30]
    assert math.isnan(log.loss.values[-1])
    assert _points(log, "val loss") == [(0, 10.8)]
    assert log.series["time"].values[0] == pytest.approx(0.46033)
    assert log.series["mfu"].values[0] == pytest.approx(0.4808)


def test_build_nanogpt(tmp_path: Path) -> None:
    log = _read(tmp_path, "0 val 10.9\n0 hella 0.25\n" + _lines(6, lambda n: f"{n} train {10 - n:.6f}"), "log.txt")
    assert log.format == "build_nanogpt"
    assert log.loss is not None
    assert log.loss.steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert log.series["val"].role == "eval_loss"
    assert _points(log, "hella") == [(0, 0.25)]
    assert log.unread == 0


def test_modded_nanogpt_reads_below_its_own_program(tmp_path: Path) -> None:
    program = (
        "import os\nimport sys\nwith open(sys.argv[0]) as f:\n    code = f.read()\nimport torch\nlr = 0.0036\n"
        "step = 5\nloss = 0.0\nval_loss = 3.0\nprint0(f'step:1 val_loss:{loss}')\n"
    )
    machine = "Running Python 3.12.7\n| 0 NVIDIA H100 On | 33C P0 118W / 700W |\n"
    log = _read(
        tmp_path,
        program + "=" * 100 + "\n" + machine + "=" * 100 + "\n"
        + "step:0/1480 val_loss:10.8258 train_time:0ms step_avg:nanms\n"
        + _lines(12, lambda n: f"step:{n + 1}/1480 train_loss:{9 - n / 10:.4f} train_time:{n}ms step_avg:160.10ms"),
    )  # fmt: skip
    assert log.format == "modded_nanogpt"
    assert _points(log, "val_loss") == [(0, 10.8258)]
    assert log.loss is not None
    assert log.loss.steps.tolist() == list(range(1, 13))
    assert log.series["step_avg"].role == "step_seconds"
    assert log.series["step_avg"].values[0] == pytest.approx(0.1601)
    assert int(log.loss.lines[0]) == program.count("\n") + 6


def test_nanochat(tmp_path: Path) -> None:
    log = _read(
        tmp_path,
        "Step 00000 | Validation bpb: 3.2\n"
        + _lines(
            5,
            lambda n: (
                f"step {n:05d}/21400 ({n / 214:.2f}%) | loss: {9 - n:.6f} | grad norm: 1.2 | lrm: 1.00 | "
                f"dt: 1629.03ms | tok/sec: 321,{n:03d} | mfu: 48.25 | total time: 0.50m"
            ),
        ),
    )
    assert log.format == "nanochat"
    assert log.series["Validation bpb"].role == "eval_loss"
    assert _points(log, "tok/sec")[-1] == (4, 321004.0)
    assert log.series["total time"].values[0] == pytest.approx(30)
    assert log.loss is not None
    assert len(log.loss) == 5


MEGATRON = (
    " iteration {step:8d}/  115311 | consumed samples: {samples:12d} | elapsed time per iteration (ms): 1205.2 | "
    "learning rate: 5.969E-05 | global batch size:  2048 |{loss} loss scale: 32768.0 | grad norm: {norm} | "
    "number of skipped iterations:   {skipped} | number of nan iterations:   0 | TFLOPs: 149.02 |\n"
)


def test_megatron_with_skipped_iterations_and_validations(tmp_path: Path) -> None:
    rows = [
        MEGATRON.format(
            step=step, samples=step * 2048, loss="" if step == 3 else f" lm loss: {3 - step / 10:.6E} |",
            norm="nan" if step == 3 else "0.5", skipped=int(step == 3),
        )
        for step in range(1, 6)
    ]  # fmt: skip
    settings = (
        "  lr .............................................. 6e-05\n  micro_batch_size ...... 2\n  fp16 ...... True\n"
    )
    ends = " validation loss at iteration 5 | lm loss value: 2.3E+00 | lm loss PPL: 9.974182E+00 |\n"
    log = _read(tmp_path, settings + "".join(rows) + ends)
    assert log.format == "megatron"
    assert log.steps_by == "iteration"
    assert log.series["lm loss"].steps.tolist() == [1, 2, 4, 5]
    assert log.series["grad norm"].steps.tolist() == [1, 2, 3, 4, 5]
    assert log.series["number of skipped iterations"].values.tolist() == [0, 0, 1, 0, 0]
    assert log.series["number of skipped iterations"].role == "skipped"
    assert log.series["number of nan iterations"].role == "nonfinite"
    assert log.series["loss scale"].role == "scale"
    assert log.series["elapsed time per iteration"].values[0] == pytest.approx(1.2052)
    assert [(s.name, s.steps.tolist()) for s in log.of_role("eval_loss")] == [("validation lm loss value", [5])]
    stated = {
        key: value for fact in log.facts if fact.kind == "setting" for key, value in fact.fields["values"].items()
    }
    assert stated == {"lr": 6e-5, "micro_batch_size": 2, "fp16": True}


def test_megatron_without_colons_and_with_a_rank_that_alone_speaks(tmp_path: Path) -> None:
    log = _read(
        tmp_path,
        _lines(
            3,
            lambda n: (
                f"[default7]: iteration {n + 100:8d}/  320000 | elapsed time per iteration (ms): 1205.2 | "
                f"learning rate 1.500E-04 | lm loss {8 - n:.6E} | loss scale 131072.0 |"
            ),
        ),
    )
    assert log.loss is not None
    assert log.loss.steps.tolist() == [100, 101, 102]
    assert log.series["learning rate"].values.tolist() == [1.5e-4] * 3


def test_deepspeed_says_what_overflowed_and_gives_the_loss_its_step(tmp_path: Path) -> None:
    begin = "[2023-08-02 00:41:17,526] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping "
    begin += "step. "
    log = _read(
        tmp_path,
        begin + "Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1\n"
        + begin + "Attempted loss scale: 65536, reducing to 32768\n"
        + "  1%|#         | 6/1184 [00:21<1:09:10,  3.52s/it]" + begin.replace("deepspeed", "deepscale")
        + "Attempted loss scale: 32768.0, reducing to 16384.0\n"
        + "[2023-08-02 00:41:17,935] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=3, lr=[0.0001, 0.0002], "
        "mom=[(0.9, 0.999)]\n"
        + "2023-08-02 00:41:17.936 | INFO     | __main__:log_dist:54 - [Rank 0] Loss: 10.8766\n"
        + "[2023-08-02 00:41:18,935] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=3, lr=[0.0001, 0.0002], "
        "mom=[(0.9, 0.999)]\n"
        + "2023-08-02 00:41:18.936 | INFO     | __main__:log_dist:54 - [Rank 0] Loss: 10.5\n",
    )  # fmt: skip
    assert log.format == "deepspeed"
    overflows = [(fact.fields["scale"], fact.fields["to"], fact.fields["step"]) for fact in log.facts]
    assert overflows == [(65536, 65536, None), (65536, 32768, None), (32768, 16384, 6)]
    assert _points(log, "Loss") == [(10, 10.8766), (20, 10.5)]
    assert _points(log, "skipped") == [(10, 3), (20, 3)]
    assert _points(log, "lr") == [(10, 1e-4), (20, 1e-4)]
    assert not log.of_role("scale")


def test_torchtitan_in_colours(tmp_path: Path) -> None:
    log = _read(
        tmp_path,
        "[rank0]:[titan] 2024-11-01 10:00:00,123 - root - INFO - Starting job\n"
        + _lines(
            4,
            lambda n: (
                f"[rank0]:[titan] 2024-11-01 10:00:0{n},123 - root - INFO - \x1b[31mstep: {n + 1:2d}  \x1b[32mloss: "
                f"{12.2 - n:8.5f}  \x1b[33mmemory: 35.47GiB(37.3%)  \x1b[34mtps: 1,{n:03d}  \x1b[35mmfu: 8.93%\x1b[39m"
            ),
        ),
    )
    assert log.format == "torchtitan"
    assert log.loss is not None
    assert log.loss.steps.tolist() == [1, 2, 3, 4]
    assert _points(log, "tps")[3] == (4, 1003.0)
    assert log.series["memory"].values[0] == pytest.approx(35.47 * 2**30)


def _bar(done: int, total: int, width: int = 10) -> str:
    drawn = ("█" * (done * width // total)).ljust(width)
    return f"\r{100 * done // total:3d}%|{drawn}| {done}/{total} [00:12<00:40,  1.20it/s]"


@pytest.mark.parametrize("quote", ["", "'"])
def test_hf_dicts_take_their_step_from_the_bar_of_the_training(tmp_path: Path, quote: str) -> None:
    text = "Loading checkpoint shards: 100%|██████████| 4/4 [00:05<00:00,  1.3s/it]\n  Total optimization steps = 50\n"
    for step in range(1, 51):
        text += _bar(step, 50)
        if step % 5 == 0:
            text += f"\r{' ' * 40}\r{{'loss': {quote}{5 - step / 20:.4f}{quote}, 'grad_norm': {quote}1.5{quote}, "
            text += f"'learning_rate': {quote}1e-05{quote}, 'epoch': {quote}{step / 25:.2f}{quote}}}\n" + _bar(step, 50)
        if step % 25 == 0:
            text += "".join(_bar(number, 8) for number in range(1, 9))
            text += f"\r{{'eval_loss': {quote}{4 - step / 20:.4f}{quote}, 'epoch': {quote}{step / 25:.2f}{quote}}}\n"
    text += "{'train_runtime': 61.2, 'train_samples_per_second': 13.1, 'train_loss': 3.7, 'epoch': 2.0}\n"
    log = _read(tmp_path, text)
    assert log.format == "hf_stdout"
    assert _points(log, "loss")[0] == (5, 4.75)
    assert log.series["loss"].steps.tolist() == list(range(5, 51, 5))
    assert log.series["eval_loss"].steps.tolist() == [25, 50]
    assert log.attempts == []
    assert [fact.kind for fact in log.facts] == ["setting", "finished"]
    assert log.facts[0].fields["values"] == {"Total optimization steps": 50}


def test_hf_dicts_without_a_bar_are_rows(tmp_path: Path) -> None:
    log = _read(
        tmp_path,
        "{'loss': 281.891, 'grad_norm': nan, 'learning_rate': 1.987e-05, 'epoch': 0.07}\n"
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1.973e-05, 'epoch': 0.14}\n",
    )
    assert log.steps_by == "row"
    assert _points(log, "loss") == [(0, 281.891), (1, 0.0)]
    assert np.isnan(log.series["grad_norm"].values).all()


def test_trl(tmp_path: Path) -> None:
    log = _read(
        tmp_path,
        _lines(
            3,
            lambda n: (
                f"{{'loss': 0.69{n}, 'grad_norm': 5.8, 'learning_rate': 0.0, 'rewards/chosen': 0.1, "
                f"'rewards/accuracies': 0.4, 'logps/chosen': -268.0, 'logits/rejected': nan, 'epoch': 0.0{n}}}"
            ),
        ),
    )
    assert log.format == "trl"
    assert log.loss is not None
    assert log.loss.values.tolist() == [0.69, 0.691, 0.692]
    assert log.series["rewards/accuracies"].role == "quality"
    assert log.series["logps/chosen"].values.tolist() == [-268.0] * 3


def test_fairseq(tmp_path: Path) -> None:
    log = _read(
        tmp_path,
        _lines(
            3,
            lambda n: (
                f"2020-01-01 10:00:0{n} | INFO | train_inner | epoch 001:    {n}00 / 2000 loss={9 - n:.2f}, ppl=548.0, "
                f"wps=1000, ups=0.5, num_updates={n}00, lr=1e-05, gnorm=1.2, loss_scale=128, train_wall=10"
            ),
        )
        + "2020-01-01 10:01:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 5.2 | num_updates 200\n"
        + "2020-01-01 10:01:01 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting "
        "loss scale to: 64.0\n",
    )
    assert log.format == "fairseq"
    assert _points(log, "loss") == [(0, 9.0), (100, 8.0), (200, 7.0)]
    assert _points(log, "validation loss") == [(200, 5.2)]
    assert log.series["gnorm"].role == "grad_norm"
    assert [(fact.kind, fact.fields["to"]) for fact in log.facts] == [("overflow", 64.0)]


@pytest.mark.parametrize("bar", ["[==============================] - ", "━━━━━━━━━━━━━━━━━━━━ "])
def test_keras_counts_on_over_epochs(tmp_path: Path, bar: str) -> None:
    text = ""
    for epoch in range(1, 4):
        text += f"Epoch {epoch}/3\n"
        text += f" 50/100 {bar.replace('=====', '>....')}1s 15ms/step - loss: {3 - epoch / 2:.4f} - accuracy: 0.5\r"
        text += f"100/100 {bar}2s 15ms/step - loss: {3 - epoch / 2 - 0.1:.4f} - accuracy: 0.9 - val_loss: 2.5\n"
    log = _read(tmp_path, text)
    assert log.format == "keras_text"
    assert log.series["loss"].steps.tolist() == [50, 100, 150, 200, 250, 300]
    assert log.series["val_loss"].steps.tolist() == [100, 200, 300]
    assert log.series["val_loss"].role == "eval_loss"
    assert log.attempts == []


def test_what_no_reader_knows_is_read_by_its_names(tmp_path: Path) -> None:
    log = _read(
        tmp_path,
        "hello\n" + _lines(5, lambda n: f"ts=2024-01-01T00:00:0{n}Z level=info step={n} loss={3 - n} lr=0.001"),
    )
    assert log.format == "text"
    assert log.series["loss"].steps.tolist() == [0, 1, 2, 3, 4]
    assert set(log.series) == {"loss", "lr"}
    assert log.unread == 1
    assert log.examples == [(1, "hello")]


def test_a_bar_that_never_moves_counts_nothing(tmp_path):
    file = tmp_path / "train.log"
    rows = [f"{{'loss': {3 - n / 10}, 'grad_norm': 1.0, 'epoch': {n / 10}}}" for n in range(1, 6)]
    file.write_text("  0%|          | 0/1000 [00:00<?, ?it/s]\n" + "\n".join(rows) + "\n")
    log = logs.read(file)
    assert log.steps_by == "row" and log.series["loss"].steps.tolist() == [0, 1, 2, 3, 4]
