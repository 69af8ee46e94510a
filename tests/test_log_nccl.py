"""Flight-recorder dumps: pickles that are never unpickled, who waits for whom, and what does not fit together."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brickprof import logs
from brickprof.analysis import analyse
from brickprof.errors import UnreadableInput
from brickprof.logs.nccl_flight import READER
from brickprof.logs.reading import plain_pickle
from brickprof.logs.reading.model import Head

CREATED = 1_700_000_000_000_000_000


def call(seq: int, state: str = "completed", op: str = "nccl:all_reduce", sizes=((4, 8),), **more) -> dict:
    return {
        "frames": [
            {"name": "all_reduce", "filename": "/site/torch/distributed/distributed_c10d.py", "line": 2501},
            {"name": "sync", "filename": "/home/me/train.py", "line": 40 + seq},
        ],
        "record_id": seq, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "op_id": seq, "profiling_name": op, "time_created_ns": CREATED + seq * 10**9,
        "input_sizes": [list(size) for size in sizes], "input_dtypes": ["BFloat16"] * len(sizes),
        "output_sizes": [list(size) for size in sizes], "output_dtypes": ["BFloat16"] * len(sizes), "state": state,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": state == "completed",
        "timeout_ms": 600000, "is_p2p": False, **more,
    }  # fmt: skip


def dump(calls: list[dict], ranks: int = 4, **status) -> dict:
    done = max((one["collective_seq_id"] for one in calls if one["state"] == "completed"), default=-1)
    last = max((one["collective_seq_id"] for one in calls), default=-1)
    told = {
        "last_enqueued_collective": last,
        "last_started_collective": -1,
        "last_completed_collective": done,
        **status,
    }
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
        "pg_status": {"0": told},
        "entries": calls,
    }


def written(folder, rank: int, made: dict, form: str = "pickle"):
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(pickle.dumps(made, protocol=2) if form == "pickle" else json.dumps(made).encode())
    return path


def told(paths) -> list[dict]:
    """What is known together."""
    (first, *_) = READER.joined([logs.read(path) for path in paths])
    return [fact.fields for fact in first.facts if fact.fields["what"] in ("timeout", "mismatch")]


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_one_rank_says_what_it_waits_in(tmp_path, form):
    made = dump([call(1), call(2), call(3, "scheduled"), call(62, "scheduled")])
    made["pg_status"]["0"] = {key: str(value) for key, value in made["pg_status"]["0"].items()}  # as JSON has it
    log = logs.read(written(tmp_path, 2, made, form))
    assert log.format == "nccl-flight" and not log.damage
    (fact,) = log.facts
    assert fact.kind == "collective" and fact.rank == 2
    assert fact.fields["what"] == "pending" and fact.fields["open"] == 2 and fact.fields["completed"] == 2
    assert fact.fields["call"]["seq"] == 3 and fact.fields["call"]["sizes"] == [[4, 8]]
    assert fact.fields["call"]["waited_s"] == 59.0 and fact.fields["call"]["timeout_ms"] == 600000
    text = (
        "rank 2 waits in nccl:all_reduce number 3 of group 0 (default_pg) since 59 s, at /home/me/train.py:43 in sync"
    )
    assert fact.fields["text"] == text


def test_a_rank_that_waits_for_nothing(tmp_path):
    (fact,) = logs.read(written(tmp_path, 0, dump([call(1), call(2)]))).facts
    assert fact.fields["what"] == "complete"
    assert fact.fields["text"] == "rank 0 has completed 2 of 2 collectives of group 0 (default_pg)"


def test_a_dump_of_the_state_alone(tmp_path):
    made = dump([], last_enqueued_collective=9, last_completed_collective=7)
    (fact,) = logs.read(written(tmp_path, 0, made)).facts
    assert fact.fields["what"] == "pending"
    assert fact.fields["text"] == "rank 0 has completed 7 of 9 collectives of group 0 (default_pg)"


def test_the_rank_that_never_came(tmp_path):
    paths = [written(tmp_path, rank, dump([call(6), call(7), call(8, "started")])) for rank in (0, 1, 3)]
    paths.append(written(tmp_path, 2, dump([call(6), call(7)])))
    (found,) = told(paths)
    assert found["state"] == "missing" and found["ranks"] == [2] and found["waiting"] == [0, 1, 3]
    assert found["seq"] == 8 and found["op"] == "nccl:all_reduce" and found["unheard"] == []
    assert found["last"] == {2: {"seq": 7, "op": "nccl:all_reduce", "site": "/home/me/train.py:47 in sync"}}
    assert found["text"].startswith("rank 2 never started nccl:all_reduce number 8 of group 0 (default_pg), in which")


def test_a_folder_of_dumps_is_one_run_that_says_who_never_came(tmp_path):
    for rank in range(4):
        written(tmp_path, rank, dump([call(7)] if rank == 2 else [call(7), call(8, "started")]))
    (run,) = analyse([tmp_path]).runs
    (finding,) = [one for one in run.diagnosis.findings if str(one.severity) == "error"]
    assert finding.root_cause == "deadlock"
    assert any("rank 2 never started nccl:all_reduce number 8" in why.finding for why in finding.whys)


def test_joining_twice_says_it_once(tmp_path):
    paths = [written(tmp_path, 0, dump([call(7), call(8, "started")])), written(tmp_path, 1, dump([call(7)]))]
    once = READER.joined([logs.read(path) for path in paths])
    assert [log.facts for log in READER.joined(once)] == [log.facts for log in once]
    assert [len(log.facts) for log in once] == [2, 1]


def test_all_came_and_it_hangs_all_the_same(tmp_path):
    paths = [written(tmp_path, rank, dump([call(7), call(8, "started")])) for rank in (0, 1)]
    paths.append(written(tmp_path, 2, dump([call(7), call(8)])))
    (found,) = told(paths)
    assert found["state"] == "stuck" and found["ranks"] == [] and found["waiting"] == [0, 1]
    assert found["completed"] == [2] and found["unheard"] == [3]
    assert "ranks 0, 1 hang in" in found["text"] and "rank 3 left no dump" in found["text"]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"op": "nccl:broadcast"}, "rank 1 called nccl:broadcast of 4×8 BFloat16"),
        ({"sizes": ((4, 9),)}, "rank 1 called nccl:all_reduce of 4×9 BFloat16"),
        ({"input_dtypes": ["Float"]}, "rank 1 called nccl:all_reduce of 4×8 Float"),
    ],
)
def test_calls_that_do_not_fit(tmp_path, other, says):
    paths = [
        written(tmp_path, 0, dump([call(1), call(2), call(3, "started")])),
        written(tmp_path, 1, dump([call(1), call(2, **other), call(3, "started", **other)])),
    ]
    found = {one["what"]: one for one in told(paths)}
    assert found["mismatch"]["seq"] == 2, "the first one, and only that"
    assert says in found["mismatch"]["text"]
    assert found["mismatch"]["sites"][1] == "/home/me/train.py:42 in sync"


def test_sizes_may_differ_where_the_operation_lets_them(tmp_path):
    paths = [
        written(tmp_path, rank, dump([call(1, op="nccl:all_to_all", sizes=((4, 8 + rank),)), call(2)]))
        for rank in (0, 1)
    ]
    assert told(paths) == []


def test_healthy_ranks_a_few_calls_apart_are_no_finding(tmp_path):
    paths = [written(tmp_path, rank, dump([call(seq) for seq in range(1, 9 + rank)])) for rank in range(3)]
    assert told(paths) == []


def test_groups_of_one_name_and_other_members_are_not_compared(tmp_path):
    first, second = dump([call(1), call(2, "started")]), dump([call(1, op="nccl:broadcast")])
    second["pg_config"]["0"]["ranks"] = "[2, 3]"
    assert told([written(tmp_path, 0, first), written(tmp_path, 2, second)]) == []


def test_point_to_point_is_told_and_not_compared(tmp_path):
    send = call(1, "scheduled", op="nccl:send 0->1", is_p2p=True, p2p_seq_id=5)
    log = logs.read(written(tmp_path, 0, dump([send])))
    assert log.facts[0].fields["call"]["seq"] == 5
    assert told([written(tmp_path, 0, dump([send])), written(tmp_path, 1, dump([]))]) == []


def test_what_torch_itself_dumps(tmp_path):
    distributed = pytest.importorskip("torch.distributed")
    core = pytest.importorskip("torch._C._distributed_c10d")
    if not hasattr(core, "_dump_fr_trace"):
        pytest.skip("this torch has no flight recorder without NCCL")
    script = (
        "import json, time, torch, torch.distributed as d, sys\n"
        "from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json\n"
        "d.init_process_group('gloo', rank=0, world_size=1, store=d.HashStore())\n"
        "d.all_reduce(torch.ones(3)); d.broadcast(torch.ones(2), 0)\n"
        # A thread of gloo's own says that a call has ended, a moment after it returned.
        "until = time.monotonic() + 20\n"
        "def ended(): return [one['retired'] for one in json.loads(_dump_fr_trace_json(True))['entries']]\n"
        "while ended() != [True, True] and time.monotonic() < until: time.sleep(0.01)\n"
        "open(sys.argv[1] + '/dump_rank_0', 'wb').write(_dump_fr_trace())\n"
        "open(sys.argv[1] + '/dump_rank_1.json', 'wb').write(_dump_fr_trace_json(True))\n"
    )
    assert distributed.is_available()
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "64"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env=environment, capture_output=True)
    for name in ("dump_rank_0", "dump_rank_1.json"):
        log = logs.read(tmp_path / name)
        assert log.format == "nccl-flight" and not log.damage
        fields = log.facts[0].fields
        assert fields["completed"] == 2 and fields["what"] == "complete"
        assert [one[1] for one in fields["recent"]] == ["gloo:all_reduce", "gloo:broadcast"]


# -- hostile


class Payload:
    def __init__(self, file) -> None:
        self._file = file

    def __reduce__(self):
        return os.system, (f"touch {self._file}",)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_does_something_is_refused_and_does_nothing(tmp_path, protocol):
    trap = tmp_path / "sprung"
    made = {**dump([call(1)]), "pg_status": Payload(trap)}
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(made, protocol=protocol))
    with pytest.raises(UnreadableInput, match="does more than hold data") as raised:
        logs.read(path, READER)
    assert "\n" not in str(raised.value) and not trap.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value",
    [
        {
            "a": [
                1,
                -1,
                2**40,
                -(2**40),
                2**200,
                1.5,
                True,
                False,
                None,
                "é",
                ("x",),
                (1, 2),
                (1, 2, 3),
                (1, 2, 3, 4),
                (),
            ]
        },
        [[], {}, [[]], {"a": {"b": {}}}, "same", "same"],
        list(range(3000)),
    ],
)
def test_plain_data_comes_out_as_it_went_in(protocol, value):
    assert plain_pickle.load(pickle.dumps(value, protocol=protocol), "x") == (value, "")


def test_shared_and_circular_values_are_harmless(tmp_path):
    entry = call(1)
    made = dump([entry, entry])
    made["entries"].append(made["entries"])
    made["itself"] = made
    log = logs.read(written(tmp_path, 0, made))
    assert log.facts[0].fields["completed"] == 1


def test_cut_off_anywhere_it_gives_what_came_before(tmp_path):
    whole = pickle.dumps(dump([call(seq) for seq in range(1, 6)]), protocol=2)
    path = tmp_path / "nccl_trace_rank_0"
    seen = set()
    for cut in range(40, len(whole), 7):
        path.write_bytes(whole[:cut])
        try:
            log = logs.read(path, READER)
        except UnreadableInput:
            assert cut < 80, "before the first of its keys it is no dump"
            continue
        assert log.damage
        seen |= {fact.fields["completed"] for fact in log.facts}
    assert seen == {-1, 5}, "the state comes before the calls, and nothing is made up in between"


def test_cut_off_in_the_calls_the_whole_ones_are_there(tmp_path):
    made = dump([call(seq, "scheduled") for seq in range(1, 6)], last_completed_collective=0)
    whole = pickle.dumps(made, protocol=2)
    path = tmp_path / "nccl_trace_rank_0"
    counts = []
    for cut in range(len(whole) // 3, len(whole), 11):
        path.write_bytes(whole[:cut])
        counts.append(len(logs.read(path, READER).facts[0].fields["recent"]))
    assert counts == sorted(counts) and counts[-1] == 5 and len(set(counts)) >= 4


@pytest.mark.parametrize(
    "change",
    [
        {"entries": "none"}, {"entries": [1, None, []]}, {"pg_status": [1]}, {"pg_config": {"0": "x"}},
        {"pg_config": {"0": {"ranks": 7}}}, {"pg_status": {"0": {"last_enqueued_collective": "many"}}},
        {"entries": [{}]},
        {"entries": [{"frames": [1, {}], "input_sizes": [["a"], 3], "state": {}, "timeout_ms": "x"}]},
        {"entries": [call(1, "\x1b[2J", op="\x1b]0;x\x07", process_group=["\u202e", "d"])]},
        {"entries": [call(10**30)]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_dumps_that_are_not_as_they_should_be(tmp_path, change, form):
    log = logs.read(written(tmp_path, 0, {**dump([call(1)]), **change}, form), READER)
    assert all(fact.fields["text"].isprintable() for fact in log.facts)
    assert READER.joined([log, log])


def test_json_that_is_cut_off_is_one_line(tmp_path):
    path = tmp_path / "rank_0.json"
    path.write_text(json.dumps(dump([call(1)]))[:-5])
    with pytest.raises(UnreadableInput, match="no whole JSON dump"):
        logs.read(path, READER)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120))
def test_arbitrary_pickles_are_refused_or_damaged(data):
    try:
        value, damage = plain_pickle.load(b"\x80\x02" + data, "x")
    except UnreadableInput:
        return
    assert damage or b"." in data
    assert value is None or isinstance(value, (dict, list, tuple, str, bytes, int, float))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_changed_byte_is_never_more_than_damage(tmp_path_factory, data):
    whole = bytearray(pickle.dumps(dump([call(1), call(2, "started")]), protocol=2))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("any") / "rank_0"
    path.write_bytes(bytes(whole))
    try:
        log = logs.read(path, READER)
    except UnreadableInput:
        return
    assert all(fact.kind == "collective" for fact in log.facts)


def test_lengths_without_bounds_allocate_nothing():
    for opcode in (
        b"X" + struct.pack("<I", 2**32 - 1),
        b"\x8d" + struct.pack("<Q", 2**62),
        b"\x8b" + struct.pack("<i", -1),
    ):
        value, damage = plain_pickle.load(b"\x80\x04" + opcode + b"abc", "x")
        assert value is None and damage


def test_what_is_not_a_dump_is_not_taken_for_one():
    assert READER.sniff(Head("model.pkl", pickle.dumps({"weights": [1.0]}))) == 0.0
    assert READER.sniff(Head("a.json", b'{"entries": []}')) == 0.0
    assert READER.sniff(Head("train.log", b"collective_seq_id pg_status")) == 0.0


# -- dumps of jobs that are well


def under_way(done: int, open_calls: int, age_s: float) -> dict:
    """A dump that was asked for: its last calls were made ``age_s`` ago."""
    begin = time.time_ns() - int(age_s * 1e9) - done * 10**7
    calls = [call(seq, "completed" if seq <= done else "scheduled") for seq in range(1, done + open_calls + 1)]
    for one in calls:
        one["time_created_ns"] = begin + one["collective_seq_id"] * 10**7
    return dump(calls)


def test_calls_that_are_under_way_are_no_hang(tmp_path):
    for rank, open_calls in enumerate((2, 1, 3, 0)):
        written(tmp_path, rank, under_way(100, open_calls, 1.0))
    (run,) = analyse([tmp_path]).runs
    assert run.diagnosis.findings == () and run.diagnosis.verdict == "VACUOUS"
    assert "under way" in str(run.diagnosis) and "nothing hangs" in str(run.diagnosis)
    (fact,) = logs.read(tmp_path / "nccl_trace_rank_0").facts
    assert fact.fields["what"] == "under-way" and fact.fields["text"].startswith("rank 0 is in nccl:all_reduce")


def test_calls_whose_time_is_up_are_one(tmp_path):
    for rank, open_calls in enumerate((2, 1, 3, 0)):
        written(tmp_path, rank, under_way(100, open_calls, 700.0))
    (run,) = analyse([tmp_path]).runs
    assert [one.root_cause for one in run.diagnosis.findings] == ["deadlock"]


def test_a_job_that_completed_all_says_so(tmp_path):
    for rank in range(4):
        written(tmp_path, rank, dump([call(1), call(2)]))
    (run,) = analyse([tmp_path]).runs
    assert run.diagnosis.findings == () and "every collective that 4 ranks recorded is complete" in str(run.diagnosis)


def test_what_the_watchdog_has_put_away_is_complete(tmp_path):
    made = dump([call(1), call(2, "started", retired=True)], last_completed_collective=1)
    (fact,) = logs.read(written(tmp_path, 0, made)).facts
    assert fact.fields["what"] == "complete"
