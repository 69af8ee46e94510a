"""From items to series: steps, attempts, thinning, and the sum of parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs_made import PlainReader, plain, same

from brickprof.logs.reading import gather
from brickprof.logs.reading import order as orders
from brickprof.logs.reading.gather import Gathering, worth_keeping
from brickprof.logs.reading.model import Fact, Skipped, block
from brickprof.logs.reading.source import Source


def gathered(*items):
    return Gathering("x.log", "test").take(items).log()


def read(path, size=1 << 20, part=None):
    source = Source(path, part)
    made = Gathering(str(path), "plain")
    chunks = source.chunks
    source.chunks = lambda: chunks(size)
    made.take(PlainReader().read(source))
    made.lines = source.line_ends
    return made


# -- steps


def test_the_step_column_tells_the_steps_and_is_no_series():
    log = gathered(block([1, 2, 3], {"iteration": [10, 20, 30], "loss": [3, 2, 1]}))
    assert list(log.series) == ["loss"]
    assert log.series["loss"].steps.tolist() == [10, 20, 30]
    assert log.steps_by == "iteration" and log.last_step == 30 and log.first_step == 10


def test_epochs_count_where_each_row_has_its_own():
    rows = [block([line], {"epoch": [line - 1], "loss": [1.0], "val_loss": [2.0]}) for line in range(2, 9)]
    log = gathered(*rows)
    assert log.steps_by == "epoch" and log.series["loss"].steps.tolist() == list(range(1, 8))


def test_epochs_that_repeat_do_not_and_rows_are_numbered():
    log = gathered(block([2, 3, 4], {"epoch": [0, 0, 0], "loss": [3, 2, 1]}), block([5], {"epoch": [1], "loss": [0.5]}))
    assert log.steps_by == "row" and log.series["loss"].steps.tolist() == [0, 1, 2, 3]


def test_a_row_whose_step_is_not_known_does_not_count():
    log = gathered(block([1, 2, 3, 4], {"step": [1, np.nan, 3, 1e300], "loss": [4, 3, 2, 1]}))
    assert log.series["loss"].steps.tolist() == [1, 3]
    assert log.series["loss"].values.tolist() == [4, 2]


def test_a_row_without_a_step_is_of_the_step_told_last():
    log = gathered(
        block([1, 3, 5], {"step": [10, 20, 30], "loss": [3, 2, 1]}), block([2, 4, 9], {"val_loss": [5, 4, 3]})
    )
    assert log.series["val_loss"].steps.tolist() == [10, 20, 30]


def test_where_no_row_has_a_step_rows_are_numbered():
    log = gathered(block([3, 5], {"loss": [3, 2]}), block([8], {"loss": [1]}))
    assert log.series["loss"].steps.tolist() == [0, 1, 2] and log.steps_by == "row"


def test_a_loss_in_rows_of_an_evaluation_is_one_of_evaluation():
    log = gathered(
        block([1, 2], {"step": [1, 2], "loss": [3, 2]}), block([3], {"step": [2], "loss": [2.5]}, kind="eval")
    )
    assert {name: series.role for name, series in log.series.items()} == {"loss": "loss", "eval/loss": "eval_loss"}
    assert log.loss is log.series["loss"]


def test_ranks_have_series_of_their_own():
    log = gathered(*(block([rank + 1], {"step": [1], "loss": [rank]}, rank=rank) for rank in range(3)))
    assert sorted(log.series) == ["loss", "loss@1", "loss@2"]


# -- attempts


def steps_of(*steps):
    return block(range(1, len(steps) + 1), {"step": steps, "loss": np.arange(float(len(steps)))})


def test_steps_that_go_back_and_stay_are_another_attempt_and_the_later_counts():
    log = gathered(steps_of(1, 2, 3, 4, 5, 3, 4, 5, 6))
    assert [(a.line, a.stopped_at, a.goes_on_at) for a in log.attempts] == [(6, 5, 3)]
    counted = log.series["loss"].last_attempts()
    assert counted.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert counted.values.tolist() == [0, 1, 5, 6, 7, 8]


def test_a_late_row_is_no_attempt():
    log = gathered(steps_of(10, 20, 40, 30, 50, 60))
    assert log.attempts == [] and log.late == 1


def test_the_last_row_going_back_is_an_attempt():
    assert len(gathered(steps_of(10, 20, 30, 5)).attempts) == 1


def test_a_restart_that_two_kinds_of_rows_show_is_one():
    """Readers give the rows of a chunk by their names: evaluations come after all the training around them."""
    train = block([1, 2, 4, 5, 7, 8], {"step": [100, 200, 300, 400, 300, 400], "loss": [1] * 6})
    evals = block([3, 6, 9], {"step": [200, 400, 300], "val_loss": [1] * 3})
    log = gathered(train, evals)
    assert [(a.line, a.stopped_at, a.goes_on_at) for a in log.attempts] == [(7, 400, 300)]


def test_interleaved_ranks_without_numbers_are_no_attempts():
    steps = [step for step in range(1, 50) for _ in range(4)]
    for place in range(3, len(steps), 4):
        steps[place] = max(steps[place] - 3, 1)
    log = gathered(steps_of(*steps))
    assert log.attempts == [] and log.late > 30


def test_steps_without_order_are_bounded():
    order = np.random.default_rng(0).permutation(100_000)
    log = gathered(block(range(1, 100_001), {"step": order, "loss": np.ones(100_000)}))
    assert len(log.attempts) <= 2 * orders._MOST_BACKS + 1


# -- thinning


def test_a_long_series_keeps_what_matters():
    rng = np.random.default_rng(0)
    values = rng.normal(2, 0.01, 400_000)
    values[123_457] = 50.0
    values[300_001:300_004] = np.nan
    made = Gathering("x", "test")
    for begin in range(0, len(values), 1000):
        lines = np.arange(begin + 1, begin + 1001)
        made.block(block(lines, {"step": lines - 1, "loss": values[begin : begin + 1000]}))
    series = made.log().series["loss"]
    assert series.count == 400_000 and len(series) <= 2 * gather.MOST_POINTS
    assert {0, 123_457, 399_999, 300_000, 300_001, 300_003, 300_004} <= set(series.steps.tolist())
    assert (np.diff(series.steps) > 0).all()


def test_many_series_share_the_room():
    made = Gathering("x", "test")
    columns = {f"m{number}": np.ones(5000) for number in range(gather._MOST_SERIES + 50)}
    for begin in range(0, 20_000, 5000):
        made.block(block(range(begin + 1, begin + 5001), {"step": np.arange(begin, begin + 5000), **columns}))
    log = made.log()
    assert len(log.series) == gather._MOST_SERIES
    assert sum(len(series) for series in log.series.values()) <= 1.5 * gather._MOST_POINTS_OF_ALL


@given(st.lists(st.one_of(st.floats(-10, 10), st.just(float("nan"))), min_size=1, max_size=400), st.integers(8, 64))
def test_the_extremes_and_the_ends_are_always_kept(values, most):
    array = np.array(values)
    kept = worth_keeping(array, most)
    assert kept[0] == 0 and kept[-1] == len(array) - 1 and (np.diff(kept) > 0).all()
    finite = array[np.isfinite(array)]
    if len(finite):
        assert finite.max() in array[kept] and finite.min() in array[kept]


def test_facts_of_one_kind_are_bounded_and_the_last_are_there():
    log = gathered(*(Fact("note", line, {"n": line}) for line in range(1, 10_001)), Fact("exception", 10_001))
    assert len(log.facts) == 2 * gather._MOST_FACTS + 1
    assert log.facts[0].line == 1 and log.facts[-1].kind == "exception" and log.facts[-2].line == 10_000


def test_unread_lines_are_counted_and_a_few_are_shown():
    log = gathered(*(Skipped(3, ((line, "text"),)) for line in range(1, 100)))
    assert log.unread == 297 and len(log.examples) == 5


# -- the sum of parts

ROW = st.one_of(
    st.tuples(st.sampled_from(["", "", "", "eval ", "rank 1 ", "rank 2 "]), st.integers(0, 30), st.booleans()),
    st.sampled_from(["chatter", "", "boom it broke", "step nan loss 1.0"]),
)


def text_of(rows) -> str:
    made = []
    for number, row in enumerate(rows):
        if isinstance(row, str):
            made.append(row)
        else:
            made.append(f"{row[0]}step {row[1]} loss {number / 7:.4f}" + (f" norm {number}" if row[2] else ""))
    return "".join(line + "\n" for line in made)


@settings(max_examples=200, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=60), st.integers(2, 6))
def test_parts_add_up_to_the_whole(tmp_path_factory, rows, count):
    file = tmp_path_factory.mktemp("gather") / "x.log"
    file.write_text(text_of(rows))
    whole = read(file).log()
    first, *more = [read(file, part=part) for part in Source(file).parts(count)] or [read(file)]
    for other in more:
        first.absorb(other)
    same(first.log(), whole)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=60), st.integers(16, 400))
def test_what_it_comes_to_does_not_depend_on_chunks(tmp_path_factory, rows, size):
    """Except for the order in which series are met first."""
    file = tmp_path_factory.mktemp("gather") / "x.log"
    file.write_text(
        text_of(
            [("", 1, False), ("", 2, True), ("eval ", 1, False), ("rank 1 ", 1, False), ("rank 2 ", 1, False), *rows]
        )
    )
    one, other = read(file).log(), read(file, size).log()
    assert one.attempts == other.attempts and (one.repeated, one.late) == (other.repeated, other.late)
    assert {name: len(series) for name, series in one.series.items()} == {n: len(s) for n, s in other.series.items()}


def test_rows_without_steps_are_numbered_on_in_the_next_part():
    first, second = Gathering("x", "t"), Gathering("x", "t")
    first.block(block([1, 2], {"loss": [3, 2]}))
    first.lines = 2
    second.block(block([1, 2], {"loss": [1, 0]}))
    first.absorb(second)
    log = first.log()
    assert log.series["loss"].steps.tolist() == [0, 1, 2, 3] and log.series["loss"].lines.tolist() == [1, 2, 3, 4]


# -- tables


def test_a_log_is_a_table_one_call_away():
    log = gathered(steps_of(1, 2, 3, 1, 2, 3, 4))
    frame = log.frame()
    assert frame.index.tolist() == [1, 2, 3, 4] and frame["loss"].tolist() == [3, 4, 5, 6]
    assert log.points()["attempt"].tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert gathered().frame().empty and gathered().points().empty


def test_gaps_are_counted_in_what_is_regular():
    assert gathered(steps_of(*range(1, 50), *range(55, 100))).holds()[0]["gaps"] == 1
    assert gathered(steps_of(*(step**2 for step in range(1, 40)))).holds()[0]["gaps"] == 0


@pytest.mark.parametrize("count", [1, 3])
def test_asking_twice_changes_nothing(count, tmp_path):
    file = tmp_path / "x.log"
    file.write_text("\n".join(plain(500)) + "\n")
    made = read(file)
    first = made.log()
    for _ in range(count):
        same(made.log(), first)


def told_by(*names):
    """Rows of steps ``begin`` to ``end`` from ``line`` on, which hold these names."""

    def rows(begin, end, line):
        steps = np.arange(begin, end)
        return block(line + np.arange(len(steps)), {"step": steps, **dict.fromkeys(names, 3.0 - steps / 1e4)})

    return rows


def test_a_run_that_is_begun_anew_with_other_columns_is_another_attempt():
    before, after = told_by("loss"), told_by("loss", "lr")
    first, second = Gathering("x", "plain"), Gathering("x", "plain")
    first.take([before(0, 300, 1)])
    first.lines = 300
    second.take([after(100, 400, 1)])
    first.absorb(second)
    whole = Gathering("x", "plain").take([before(0, 300, 1), after(100, 400, 301)])
    for log in (first.log(), whole.log()):
        assert [(one.line, one.stopped_at, one.goes_on_at) for one in log.attempts] == [(301, 299, 100)]
        assert log.series["loss"].last_attempts().steps.tolist() == list(range(400))


@pytest.mark.parametrize(
    "blocks",
    [
        [told_by("loss")(0, 300, 1), told_by("loss", "lr")(300, 400, 301)],
        [told_by("loss")(0, 300, 1), told_by("loss", "score")(5, 6, 301)],
        [told_by("loss")(0, 300, 1), told_by("test_loss")(0, 10, 301)],
        [told_by("loss")(0, 300, 1), told_by("loss", "norm")(250, 280, 100)],
    ],
    ids=["goes on", "one last row", "an evaluation", "in between"],
)
def test_other_columns_alone_are_no_other_attempt(blocks):
    assert Gathering("x", "plain").take(blocks).log().attempts == []
