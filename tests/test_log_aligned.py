"""Tables that are printed for people, and the last epoch of a progress bar that was not finished."""

from __future__ import annotations

import math

import numpy as np

from brickprof import logs
from brickprof.analysis import analyse

HEAD = (
    "ℹ Pipeline: ['tok2vec', 'ner']\n"
    "E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  SCORE \n"
    "---  ------  ------------  --------  ------  ------\n"
)


def table(count: int = 12) -> str:
    rows = [
        f"{n // 3:3}  {200 * n:6}  {30.5 + 7 * n:12.2f}  {100 * (1 + n):8.2f}  {60 * (1 - math.exp(-n / 4)):6.2f}"
        f"  {0.6 * (1 - math.exp(-n / 4)):6.2f}"
        for n in range(count)
    ]
    return HEAD + "\n".join(rows) + "\n"


def test_columns_are_told_by_the_rule_below_their_names(tmp_path):
    (tmp_path / "train.txt").write_text("hello\n" + table() + "✔ Saved pipeline to output directory\n")
    log = logs.read(tmp_path / "train.txt")
    assert log.format == "aligned" and log.steps_by == "#" and log.unread == 3
    assert log.series["LOSS NER"].steps.tolist() == [200 * n for n in range(12)]
    assert log.series["LOSS NER"].values.tolist() == [100.0 * (1 + n) for n in range(12)]
    assert (log.series["E"].role, log.series["SCORE"].role) == ("epoch", "quality")


def test_sums_that_grow_while_the_score_does_are_no_divergence(tmp_path):
    (tmp_path / "train.txt").write_text(table(30))
    (run,) = analyse([tmp_path / "train.txt"]).runs
    assert run.diagnosis.verdict == "PASS" and run.diagnosis.findings == ()


def test_blank_lines_and_a_second_table_are_read(tmp_path):
    (tmp_path / "train.txt").write_text(
        table(5).replace("\n", "\n\n") + HEAD + "  9    9000          1.00      2.00   50.00    0.50\n"
    )
    log = logs.read(tmp_path / "train.txt")
    assert log.series["SCORE"].steps.tolist() == [0, 200, 400, 600, 800, 9000]


def test_a_second_table_has_names_of_its_own(tmp_path):
    (tmp_path / "train.txt").write_text(
        table(5)
        + "E    #       LOSS TAGGER  SCORE \n---  ------  -----------  ------\n"
        + "".join(f"  {n}     {9000 + n}         {9 - n}.00    0.50\n" for n in range(4))
    )
    log = logs.read(tmp_path / "train.txt")
    assert log.damage == [] and log.series["LOSS NER"].values.tolist() == [100.0 * (1 + n) for n in range(5)]
    assert log.series["LOSS TAGGER"].steps.tolist() == [9000, 9001, 9002, 9003]


def test_a_rule_in_prose_is_no_table(tmp_path):
    (tmp_path / "notes.txt").write_text(
        "name  place  when\n----  -----  ----\nA  B  C\nstep 1 loss 2.5\nstep 2 loss 2.4\n"
    )
    assert logs.read(tmp_path / "notes.txt").format == "text"


def test_a_traceback_below_the_table_is_found(tmp_path):
    said = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: no\n'
    (tmp_path / "train.txt").write_text(table() + said)
    assert [fact.fields["type"] for fact in logs.read(tmp_path / "train.txt").facts] == ["ValueError"]


def test_an_unfinished_last_epoch_comes_behind_the_whole_ones(tmp_path):
    lines = []
    for epoch in range(1, 4):
        lines += [
            f"Epoch {epoch}/5",
            f"300/300 [====] - 9s 29ms/step - loss: {3 / epoch:.4f} - val_loss: {3.1 / epoch:.4f}",
        ]
    lines += ["Epoch 4/5", "144/300 [==>.] - ETA: 4s - loss: 0.7000"]
    (tmp_path / "keras.txt").write_text("\n".join(lines) + "\n")
    log = logs.read(tmp_path / "keras.txt")
    assert log.series["loss"].steps.tolist() == [300, 600, 900, 1044] and log.attempts == []
    assert np.isclose(log.series["loss"].values[-1], 0.7)


def test_what_time_costs_is_no_loss(tmp_path):
    lines = []
    for epoch in range(8):
        lines += [
            f"INFO:root:Epoch[{epoch}] Batch [{n}]\tSpeed: 829.01 samples/sec\taccuracy={0.1 + epoch / 10:.3f}"
            for n in (50, 100)
        ]
        lines.append(f"INFO:root:Epoch[{epoch}] Time cost={60 + epoch}.25")
    (tmp_path / "mx.log").write_text("\n".join(lines) + "\n")
    log = logs.read(tmp_path / "mx.log")
    assert log.of_role("loss") == [] and len(log.of_role("quality")) == 1
    (run,) = analyse([tmp_path / "mx.log"]).runs
    assert run.diagnosis.verdict == "PASS"


def test_rows_that_are_only_numbered_are_numbered_as_they_stand(tmp_path):
    lines = []
    for n in range(12):
        lines.append(f"loss {2.0 - n / 10:.2f} acc {n / 20:.2f}" if n % 3 else f"lr 0.1 loss {2.0 - n / 10:.2f}")
    (tmp_path / "odd.log").write_text("\n".join(lines) + "\n")
    series = logs.read(tmp_path / "odd.log").series["loss"]
    assert series.steps.tolist() == list(range(12)) and series.values.tolist() == [
        round(2.0 - n / 10, 2) for n in range(12)
    ]
