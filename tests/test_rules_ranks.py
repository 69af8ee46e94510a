"""Ranks that train together: equal bits, reduced gradients, disjoint data, collectives in order."""

from __future__ import annotations

import pytest
from making import Made

from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis import diagnose
from brickprof.records import RunMeta
from brickprof.rules import collectives, ranks, shards
from brickprof.rules.story import Story
from brickprof.run import Run

BLOCKS = ("embed", "body", "head")


class Pair:
    """Two ranks, step by step; what is not said is equal and healthy."""

    def __init__(self, wrapper: str = "DistributedDataParallel") -> None:
        self.ranks = [Made(*BLOCKS, rank=rank) for rank in (0, 1)]
        for made in self.ranks:
            for event in made.records:
                if event.kind == "run":
                    event.fields["world_size"] = 2
                if event.kind == "model":
                    event.fields["wrapper"] = wrapper

    def step(self, step, *, local=((1.0, 3.0),), used=((1.5, 1.5),), bits=((5, 5),), **batch):
        """``local``, ``used`` and ``bits``: a pair for each block, or one pair for all of them."""
        for rank, made in enumerate(self.ranks):
            fingerprint = batch.get("fingerprints", (f"a{step}", f"b{step}"))[rank]
            made.event("batch", step, loader=0, wait_ns=1, fingerprint=fingerprint, count=step + 1)
            made.step(step)
            for place, block in enumerate(BLOCKS):
                made.sample("grad_local", step, block, l2=local[place % len(local)][rank])
                made.sample("grad", step, block, l2=used[place % len(used)][rank])
                made.sample("weight", step, block, checksum=1000 * step + bits[place % len(bits)][rank])

    def run(self) -> Run:
        return Run.from_records([*self.ranks[0].records, *self.ranks[1].records], RunMeta("pair", source="records"))

    def judge(self, rule):
        return rule().judge(Story.of(self.run()), Terms().contract(rule.contract))


def pair(steps: int = 6, **each) -> Pair:
    made = Pair(each.pop("wrapper", "DistributedDataParallel"))
    for step in range(steps):
        made.step(step, **each)
    return made


@pytest.mark.parametrize("rule", [ranks.Together, ranks.Bits, shards.Shards])
def test_equal_ranks_pass(rule):
    result = pair().judge(rule)
    assert (result.verdict, result.violations) == (Verdict.PASS, ())


@pytest.mark.parametrize("rule", [ranks.Together, ranks.Bits, shards.Shards, collectives.Conversation])
def test_one_rank_is_vacuous(rule):
    made = Made()
    made.healthy(4)
    assert rule().judge(Story.of(made.run()), Terms().contract(rule.contract)).verdict is Verdict.VACUOUS


@pytest.mark.parametrize("rule", [ranks.Together, ranks.Bits, shards.Shards])
def test_shards_of_a_model_are_not_compared(rule):
    assert pair(wrapper="FSDP2", bits=((1, 2),), used=((1, 2),)).judge(rule).verdict is Verdict.NOT_EVALUATED


def test_gradients_that_nobody_reduces_are_named_with_the_ranks_that_kept_their_own():
    made = pair(local=((1.0, 3.0),), used=((1.0, 3.0),), bits=((1, 2),))
    (violation,) = made.judge(ranks.Together).violations
    assert (violation.cause, violation.severity, violation.first_step) == ("gradient-not-reduced", Severity.ERROR, 0)
    assert "Rank 0, 1 used its own gradient" in violation.whys[-1].finding
    assert violation.brick == ""


def test_one_block_that_is_left_out_of_the_reduction_is_the_brick():
    used, bits = ((1.5, 1.5), (1.0, 3.0), (1.5, 1.5)), ((5, 5), (1, 2), (5, 5))
    (violation,) = pair(used=used, bits=bits).judge(ranks.Together).violations
    assert (violation.cause, violation.brick) == ("gradient-not-reduced", "body")


def test_equal_gradients_and_other_weights_are_a_divergence():
    made = Pair()
    for step in range(6):
        made.step(step, bits=((5, 5),) if step < 3 else ((5, 5), (5, 6), (5, 5)))
    (violation,) = made.judge(ranks.Together).violations
    assert (violation.cause, violation.first_step, violation.brick) == ("rank-divergence", 3, "body")


def test_ranks_that_began_with_other_weights_are_told_so():
    (violation,) = pair(bits=((1, 2),)).judge(ranks.Together).violations
    assert violation.cause == "rank-divergence"
    assert "did not begin with equal weights" in violation.whys[-1].finding


def test_a_drift_and_its_cause_are_one_finding():
    made = pair(local=((1.0, 3.0),), used=((1.0, 3.0),), bits=((1, 2),))
    findings = [finding for finding in diagnose(made.run()).findings if finding.severity is not Severity.INFO]
    assert [finding.root_cause for finding in findings] == ["gradient-not-reduced"]


def test_ranks_that_average_now_and_then_are_not_accused():
    made = Pair("")
    for step in range(8):
        made.step(step, bits=((5, 5),) if step % 4 == 0 else ((1, 2),), used=((1.0, 3.0),))
    assert made.judge(ranks.Together).verdict is Verdict.NOT_EVALUATED


def test_ranks_that_train_alone_are_not_accused():
    made = pair(wrapper="", bits=((1, 2),), used=((1.0, 3.0),))
    assert made.judge(ranks.Together).verdict is Verdict.NOT_EVALUATED


def test_gradients_that_vanish_on_both_ranks_do_not_make_them_one_model():
    made = Pair("")
    made.step(0, bits=((1, 2),), used=((1.0, 3.0),))
    made.step(1, bits=((1, 2),), used=((6e-8, 6e-8),))
    assert made.judge(ranks.Together).verdict is Verdict.NOT_EVALUATED


def test_norms_that_lie_at_other_parameters_on_another_rank_were_added_up_wrongly():
    made = Pair("")
    for rank in made.ranks:
        rank.event("collective", 0, op="all_reduce", seq=1, group="world", numel=64, phase="done")
    for step in range(3):
        made.step(step, used=((1.0, 2.0), (2.0, 1.0), (5.0, 5.0)), bits=((1, 2), (3, 4), (5, 5)))
    found = made.judge(ranks.Together).violations[0]
    assert found.cause == "collective-mismatch"
    assert "embed.weight" in found.symptom and "body.weight" in found.symptom


def test_a_sum_is_longer_than_any_mean():
    (violation,) = pair(local=((1.0, 3.0),), used=((3.8, 3.8),)).judge(ranks.Together).violations
    assert (violation.what, violation.severity) == ("gradient-summed", Severity.WARNING)


def test_a_sum_of_losses_divided_beforehand_is_right():
    made = pair(local=((1.0, 3.0),), used=((3.8, 3.8),))
    for step in range(6):
        made.ranks[0].event("criterion", step, name="mse", value=2.0, grad=True)  # the loss that went back is 1.0
    assert made.judge(ranks.Together).verdict is Verdict.PASS


def test_reduced_gradients_that_were_equal_in_the_end_are_fine():
    # Reduction inside the optimizer: its hook sees gradients before it.
    assert pair(used=((1.0, 3.0),)).judge(ranks.Together).verdict is Verdict.PASS


# -- data


def test_the_same_batches_on_two_ranks_overlap():
    made = Pair()
    for step in range(6):
        made.step(step, fingerprints=(f"f{step}", f"f{step}"))
    (violation,) = made.judge(shards.Shards).violations
    assert (violation.cause, violation.detected_step) == ("shard-overlap", 3)


def test_constant_data_and_a_few_equal_batches_are_no_overlap():
    made = Pair()
    for step in range(20):
        made.step(step, fingerprints=("f", "f"))
    assert made.judge(shards.Shards).verdict is Verdict.PASS
    made = Pair()
    for step in range(20):
        made.step(step, fingerprints=("f", "f") if step == 7 else (f"a{step}", f"b{step}"))
    assert made.judge(shards.Shards).verdict is Verdict.PASS


def test_loads_that_differ_are_a_warning():
    made = pair()
    for made_by, batches in zip(made.ranks, (40, 10), strict=True):
        made_by.event("loader", 0, loader=0, batches=batches, batch_size=8, train=True)
    (violation,) = made.judge(shards.Shards).violations
    assert (violation.cause, violation.severity) == ("shard-imbalance", Severity.WARNING)


@pytest.mark.parametrize(("shared", "verdict"), [(8, Verdict.FAIL), (0, Verdict.PASS)])
def test_targets_tell_where_no_loader_hands_out_batches(shared, verdict):
    made = Pair()
    for step in range(48):
        for rank, made_by in enumerate(made.ranks):
            made_by.step(step)
            made_by.sample("weight", step, "body", checksum=step)
            # Two epochs of 24; rank 1 has its first ones from rank 0's share, at another time.
            nth = step % 24
            name = f"r0-{nth + 3}" if rank and nth < shared * 2 else f"r{rank}-{nth}"
            made_by.event("targets", step, fingerprint=name)
    assert made.judge(shards.Shards).verdict is verdict


# -- collectives


def spoken(*said, **fields) -> Pair:
    """Each of ``said`` is what rank 0 and rank 1 call."""
    made = pair(2)
    for seq, both in enumerate(said):
        for rank, op in enumerate(both):
            told = {"op": op, "seq": seq, "group": "world", "numel": 8, "dtype": "float32", "phase": "done", **fields}
            made.ranks[rank].event("collective", 1, **told)
    return made


def test_collectives_in_order_pass():
    assert spoken(("all_reduce", "all_reduce"), ("barrier", "barrier")).judge(
        collectives.Conversation
    ).verdict is Verdict.PASS  # fmt: skip


def test_another_operation_on_one_rank_is_a_mismatch():
    made = spoken(("all_reduce", "all_reduce"), ("all_reduce", "barrier"))
    (violation,) = made.judge(collectives.Conversation).violations
    assert violation.cause == "collective-mismatch"
    assert "rank 1: barrier" in violation.symptom


def test_messages_between_two_ranks_are_no_mismatch():
    assert spoken(("send", "recv")).judge(collectives.Conversation).verdict is Verdict.PASS


def test_a_handle_that_nobody_waits_for_is_found():
    made = spoken(("all_reduce", "all_reduce"), asynchronous=True, waited=False, phase="orphaned")
    (violation,) = made.judge(collectives.Conversation).violations
    assert violation.cause == "collective-orphaned"


def hung(made: Pair, stacks: tuple[str, ...] = ()) -> Pair:
    looks = [{"rank": rank, "stalled": True, "stacks": [text], "cpu_seconds": 0.0} for rank, text in enumerate(stacks)]
    made.ranks[0].event("hang", 1, rank=-1, seconds=9.0, place="", ranks=looks)
    return made


def test_ranks_that_wait_in_collectives_are_a_deadlock_and_one_finding():
    made = hung(spoken(("all_reduce", "all_reduce"), phase="open"))
    (violation,) = made.judge(collectives.Conversation).violations
    assert violation.cause == "deadlock"
    found = [finding for finding in diagnose(made.run()).findings if finding.severity is Severity.ERROR]
    assert [finding.root_cause for finding in found] == ["deadlock"]


def test_stacks_tell_a_deadlock_from_a_slow_rank():
    waits = 'File "/x/site-packages/torch/distributed/distributed_c10d.py", line 9 in recv\n'
    waits += 'File "/home/me/train.py", line 5 in main'
    (violation,) = hung(pair(2), (waits, waits)).judge(collectives.Conversation).violations
    assert "train.py:5 in main" in violation.symptom
    sleeps = 'File "/home/me/train.py", line 7 in main'
    assert not hung(pair(2), (sleeps, sleeps)).judge(collectives.Conversation).violations


def test_a_timeout_inside_a_collective_of_a_child_is_a_deadlock():
    trace = 'Traceback (most recent call last):\n  File "/home/me/ring.py", line 30, in exchange\n    dist.recv(x)\n'
    trace += '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 27, in recv\n    work.wait()\n'
    made = pair(2)
    message = (
        f"\n\n-- Process 0 terminated with the following error:\n{trace}RuntimeError: Timed out waiting 9000ms for recv"
    )
    made.ranks[0].event("exception", 0, rank=-1, type="ProcessRaisedException", message=message, frames=[])
    (violation,) = made.judge(collectives.Conversation).violations
    assert violation.cause == "deadlock"
    assert "ring.py:30 in exchange" in violation.symptom


@pytest.mark.parametrize(("went_on", "cause"), [(False, "deadlock"), (True, "collective-mismatch")])
def test_a_peer_that_left_after_a_standstill_is_the_end_of_a_deadlock(went_on, cause):
    made = hung(pair(2))
    if went_on:  # it had only been slow
        for each in made.ranks:
            each.step(2)
    frame = {
        "file": "/x/site-packages/torch/distributed/distributed_c10d.py",
        "line": 27,
        "function": "recv",
        "text": "",
    }
    frames = [{"file": "/home/me/ring.py", "line": 30, "function": "exchange", "text": ""}, frame]
    made.ranks[0].event("exception", 1, type="RuntimeError", message="Connection closed by peer", frames=frames)
    (violation,) = made.judge(collectives.Conversation).violations
    assert violation.cause == cause


@pytest.mark.parametrize("rule", [ranks.Parity, collectives.Wire])
def test_what_a_run_cannot_show_is_not_evaluated(rule):
    result = pair().judge(rule)
    assert result.verdict is Verdict.NOT_EVALUATED
    assert "brickprof" in result.why
