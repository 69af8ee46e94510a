"""The records of a run: what capture writes, what everything else reads.

Three kinds. An ``Event`` is a fact worth surviving anything (written at once). A ``Span`` is the time
one brick took. A ``Sample`` is the statistics of one tensor. All are plain frozen data.

Event kinds and their fields (every event also has ``seq``, ``t`` (unix ns), ``step``):

    run          run_id, version, pid, python, torch, level, budget, coordinates, rank, world_size, argv, host
    brick        id, brick_kind, path, model                       interns a Brick
    tensor       id, name, model, brick, shape, dtype, device, trainable, alias_of     interns a tensor
    model        model, cls, parameters, trainable, blocks, wrapper, compiled
    optimizer_created  optimizer, cls, built_lr (the highest it was built with), groups [{tensors, ...hyperparameters}]
    loss         value, micro, site, scale, dtype, grad_fn, training, shape, zeroed, closure (inside a step)
    losses       steps, micros, values, times     losses of brisk steps whose other facts were not written
    grad         point, tensors, l2, absmax, at, nonfinite [{tensor, nan, inf}], scale, micro, zero [tensors whose
                 gradient is all zero], zeros (how many), missing [trainable tensors without a gradient], largest (the
                 largest norm that is finite, where only norms were known)
    clip         norm, max_norm, norm_type, tensors, how (norm|value), late (an update had used the gradients already)
    zero_grad    optimizer | model, to_none
    optimizer    optimizer, lr [per group], skipped, count
    hyperparameters    optimizer, groups          when they first appear and when they change
    schedule     schedule, cls, optimizer, lr, count, settings (the first time); measure, mode, bad (of one that waits
                 for progress, each time it is told how well things go)
    schedules    schedules, scheduled          at the end: how many there were, how often they were stepped
    ownership    owned, unowned, moved, idle, outside, frozen [tensors], wished [[path, bool, attribute]], noise
                 [tensors that from_pretrained froze by default, of random rows]         who updates what
    unused       optimizers                                        at the end: built and never stepped
    targets      fingerprint (of what a step is to learn; None with a loss written by hand), input (the same of what it
                 learns from), absmax, std (of some of its elements), rows, at (where the input lies)
    scaler       op (unscale|step|update), scale, found_inf, skipped
    batch        loader, wait_ns, fingerprint, size, count, samples (rows), epoch (how often the loader was started
                 before), index (position in the epoch), sampler_epoch; of the first tensor of floats: nan, inf, mean,
                 std, absmax, looked (elements)
    criterion    name (cross_entropy|nll|mse|bce|bce_logits|kl_div|l1|...), value (None for reduction none), reduction,
                 classes, rows, shapes, dtype, grad, training, fed (samples that the model was last given), made_in
                 (the module that squashed the input), site, calls, requires [whether input, target and variance depend
                 on the parameters; None where it is no tensor], options {log_target | log_input}; in some steps
                 made_by (the function that gave the input its range) and, of a few rows:
                 input {min, max, absmax, mean, std, finite, nonnegative, constant, sums_to_one, log_distribution},
                 target {dtype, min, max, distinct, finite, ignored, looked}, variance {min, max, mean, std,
                 finite}. With grad False: the mean of one
                 loss function over an evaluation pass
    evaluation   model, training (the mode it ran in), sensitive (has dropout or batch-norm), mixed (how many of them
                 were in training mode), forwards, rows, loss (mean, or None), frequent (runs in every step: part of the
                 training). One per pass with gradients off, of the step it began in
    loader       loader, train, cls, sampler, shuffles, batch_size, batches, samples, drop_last, workers, dataset,
                 replicas, shard
    moments      optimizer, cls, count (updates done), dtype, tensors [{tensor, m_error, v_error, v_min, stale;
                 of an optimizer of one's own whose moments began in this update: broken (elements that are not finite),
                 beyond (largest moment over largest gradient and weight), unlike (share of the first moment that is no
                 multiple of gradient or weight), grown (its norm over the gradient's)}]
    origin       op (autograd node), kind (log-of-zero|log-of-negative|division-by-zero|root-of-negative|overflow|
                 empty-softmax|empty-mean|input|weights|unknown), inputs [{name, min, max, zeros, nan, inf, numel}],
                 depth (nodes from the loss), nodes, tensor (of weights), brick (of weights, or the innermost module
                 that the operation stands in, where that is known), given_by (of an operation in a model's own code:
                 the module that made what it was given)
    units        brick, activation (ReLU|Tanh|Sigmoid), units, rows, dead (share of units), saturated (share of values)
    wiring       places, rows, shifts [[places ahead, share of targets that are the input token there]], attention
                 [{brick, next (share of scored places that see the next one), placeless (share of equal tokens with
                 equal keys)}], idle [paths of modules that hold tables and did not run, where keys are equal];
                 of embedded tokens whose places are the targets'
    integrity    looked, backwards, forward, backward, state [tensors that changed, or whose optimizer's memory did,
                 while nobody updated them], made (the sum of the norms that the backwards left), used (by the update)
    operations   forward, backward (multiplications and additions of products, convolutions and attention), products,
                 unknown [operations whose own are not known], whole (there are none), micro, devices (how many they are
                 made on), dtype (in which most are made); of the graphs behind a backward
    breadth      nodes, levels, op, level, most (how often op stands at that level), broad (operations that stand side
                 by side with 16 or more of their kind), brick (that op stands in); of the graph behind a loss
    shapes       nodes, fed (the shape of what the model was given), chain [tensors of the matrix products that lie one
                 behind the other], bent (whether anything that is not linear lies between them), matrices [tensors
                 that the loss depends on], table {op, given, made (shapes of a result with a value for every two
                 samples), fixed (shape of the other operand), apart (roundings from a sum of a row and a column),
                 depth} or None                                    of the graph behind a loss
    swallowed    traced (calls), sites [{type, kind (its nearest class of Python's own), message, at (file:line),
                 function, raised_in (the Python module that raised), brick, times, calls (of the function, there)}]
                 exceptions out of the user's own code in a forward that went on to its backward
    held         optimizer, tensors, held (not found cleared before any backward of the step), zeroed (zero_grad
                 calls since the last such event), updates (since then), cleared (times this optimizer cleared its own
                 gradients since then), within (the module that holds all its parameters)
    applied      optimizer, coefficient, before, after, tensors, scale, blocks [[brick, coefficient]] where they differ
    tied         model, tensors, names, declared, same_storage, same_parameter, equal
    checkpoint   op (save|load), file, bytes, models, tensors, optimizer, moments, scheduler, scaler, rng, step, keys,
                 rates [[optimizer, lr]] at the time (load)
    restored     what (model|optimizer|scheduler|scaler), cls, tensors, expected, missing, unexpected, names, strict,
                 moments, count, lr, optimizer
    stated       source (script|argparse), values {dotted key: value}: settings that the script itself holds
    loops        optimizer, loops [{over (as it is written), rounds (None where that is not plain to see), site,
                 exhausts (it runs over something with a name, and nothing leaves it)}], outermost first: those that
                 the script makes this optimizer's updates in
    dropout      model, modules, rates (those that differ)
    pruned       tensor, how (the function of torch.nn.utils.prune), zeros, numel: a weight that got a mask
    collective   op, seq (per group), group, ranks, numel, dtype, asynchronous, waited, phase (open|done|wait|orphaned),
                 site, ns
    syncs        count, device (of tensors on a device), ns (until those were there), sites [[file:line, n, whole
                 tensors, of a device, ns, ns of the longest]], kinds [[file:line, item|to|print|nonzero|mask|..., n,
                 ns]], torch [n, ns] (what torch read of a device for itself), around {file:line: what the loops around
                 it run over}, waits [[file:line, synchronize|stream.synchronize|event.synchronize, n, ns, ns of the
                 longest]] (that asked for no value)
                                                                   host reads, sampled steps
    transfers    count, bytes, ns (of the host), backwards, device [names], rows [[file:line, H2D|D2H|D2D|pin, n, bytes,
                 pinned, blocking, ns]], home [[file:line, micro-batches, n, bytes]] (to the host, no part of the graph)
                 copies between host and device, sampled steps; ``pin`` is counted in rows only
    unsteady     brick, phase, mean_ns, cv, budget_us, efficiency (budget over the window's median, at most 1), reason
                 (cv_exceeded|efficiency_low|both), declared (whether that budget was), until: its time on the device
                 scatters or is over its budget
    window       kernels, written (as spans), left_out, busy_ns, step_ns, median_ns (of a kernel), names [[name, n,
                 ns]], most_launched [[name, n, "", [[brick, n]]]], unwritten [[brick of the kernel, brick that launched
                 it (0: any), phase, n, ns]] (sums of those without a span), cost_ms
                                                                   a step that was seen through torch's profiler
    fallback     operation, reason, instead                        torch took the place of a kernel of ours
    launches     count, kernels [[name, n, file:line]]             Triton kernels of a step whose spans are written
    race         pair (a number), cause (missing-sync|host-buffer-reuse|stream-race), how (read-before-copy|
                 write-during-copy|alias-dropped|alias-overwritten|alias-kept|alias-unread|freed|write-unseen|
                 read-after-write|write-after-read|write-after-write),
                 memory (pinned|device), first, second {site, stack [file:line in function], stream, op, writes}, bytes,
                 shape, itemsize, instead (nothing|not-done|event-too-early|other-stream: what was done instead of
                 waiting), instead_site, count. One memory, two uses, no order; again whenever the count has doubled
    sync_check   copies (between pinned memory and a device, that do not wait), launches, waits, streams, pairs,
                 dropped, whole (False where the check had to give up), hears_questions (False where torch.Event.query
                 cannot be heard), replays (of graphs), kernels (Triton's), astray (those that were given memory of the
                 host), doubtful (pairs that nothing orders, of which one is a kernel): what was looked at so far
    arguments    kernel, site, brick, arguments [{name, shape, strides}], sizes {name: n}, constants {name: n}, bounds
                 {stride: [size]} (by its source), casts (only where its source casts pointers, so that strides may be
                 in another unit): what a launch of a Triton kernel was told, once for all like it
    retained     graphs (of losses of earlier steps, alive), since, looked
    mode         model, training, mixed
    activation   block outputs that are not finite: brick, nan, inf, numel, dtype, phase, inputs_finite;
                 micro (of the first one of a step that nobody looked at for them), inside (of compiled code: counted
                 in what that keeps of it, or of what is made of it next, for the backward) and its operations
                 ("log in model.py:12": those that have no finite result of some values)
    weight       weights that are not finite after an update: nonfinite [{tensor, nan, inf}]
    sampled      level, reason (first|cadence|escalation), tensors, roles     what was looked at, and why
    cadence      guard, full, spans, overhead, reason              how often, from now on
    anomaly      what, brick, tensor, value, until                 deep capture is on until that step
    memory       rss, peak, device_allocated, device_reserved
    compile      model (a class that is handed to torch.compile); function, site (of the script, that was compiled)
    note         text                                              something capture wants to say once
    exception    type, message, frames, where
    probe_off    probe, error, failures
    dropped      events, spans, samples, reason
    exit         steps, costs {probe: ns}, overhead, spent_seconds, written_seconds (by the thread that writes),
                 first_seconds (while the run was young), settled_overhead (after that, writing included), dropped,
                 recomputes, judged (steps of which it is known whether their gradients were finite), measured (those
                 with all statistics of them), looked_out (backwards behind which a NaN in a block of a device would be
                 seen)

and of the launch itself (``process.jsonl``, rank -1): start, exited, signal, hang, stacks, memory, exception, and

    card         what, device (NVML's number), ordinal (the run's own number for it); of the cards that the run uses:
                 what=device (once): name, uuid, mig, driver, interval, known_by (listed: NVML lists our processes, or
                 grown: only its memory tells), reads (what it answers), memory_total, memory_before, power_limit,
                 sm_clock_max, memory_clock_max (MHz), ecc_corrected, ecc_uncorrected (volatile, at the start);
                 what=sample (ever rarer): looks (how many it averages), seconds (since the start), utilisation (0..1),
                 power (W), sm_clock, memory_clock, temperature (means), memory_used, memory_ours (of the run's own
                 processes, where the driver tells), memory_peak, memory_total, power_limit, throttle [words, now],
                 throttled {word: looks};
                 what=throttle (a change): throttle, was; what=ecc (a rise): corrected, uncorrected, ecc_corrected,
                 ecc_uncorrected; what=xid: xid; what=lost: the driver has lost the card; what=process (a stranger on
                 the card): pid, name, memory, before (it was there at the start), orphan (no parent, no work), left
    sanitizer    what (start|error|summary), tool; of an error (the first of its kind): error (invalid|misaligned|race|
                 absent|uninitialised|unwritten-copy|barrier|leak|api|other), text, access, space, size, kernel, offset,
                 file, inside (the function at fault, where it is not the kernel itself), thread, block, address, state,
                 near, level, hazard, hazards, others [{kernel, offset, file, access}], by and at (of a copy), host
                 [frames], more [lines]; of a summary: errors (where the tool came to its end), complaints, kinds,
                 logs, by_error, unprinted, doubts; rank, where the supervisor is one of several
    log          (of runs that logs tell of, see ``brickprof.logs.reading.to_run``) format, path, steps_by, series, ...
    metric       name, role, value: a number of a log that no other event means
    resumed      stopped_at, goes_on_at, before, after, attempt: a log whose steps go back, or that another one goes on
    said         fact (ended|device|collective|checkpoint|finished|...), and what the log says in words
                 Events of logs carry ``line``, and ``file`` where there are several.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from brickprof.bricks import Brick, Coordinates

SCHEMA = 1

BUDGET = "brick.budget_us"
"""The attribute of a span that says what its brick may take, in microseconds; declared, or learned from the run."""
DECLARED = "brick.budget_declared"
"""The attribute beside it, where somebody declared that budget."""
ROLES = ("grad_local", "grad", "weight", "update", "activation", "input", "loss")
PHASES = (
    "run", "step", "forward", "backward", "optimizer", "loader", "eval", "recompute", "transfer", "user", "sync",
)  # fmt: skip

HISTOGRAM_BINS = 24
"""Bins of log2 |x| of the 1K sample, five octaves each from 2**-70; bin 0 also holds what is smaller
(zeros are in ``zero_fraction``), the last bin what is larger or not finite."""
HISTOGRAM_LOW = -70
HISTOGRAM_OCTAVES = 5


@dataclass(frozen=True, slots=True, init=False)
class Event:
    kind: str
    step: int
    fields: dict[str, Any] = field(default_factory=dict)
    seq: int = 0
    time_ns: int = 0
    rank: int = 0

    def __init__(
        self, kind: str, step: int, fields: dict[str, Any] | None = None, seq: int = 0, time_ns: int = 0, rank: int = 0
    ) -> None:
        # By the slots themselves: what a frozen dataclass makes takes twice as long, and a run has them by the million.
        _set_kind(self, kind)
        _set_step(self, step)
        _set_fields(self, {} if fields is None else fields)
        _set_seq(self, seq)
        _set_time_ns(self, time_ns)
        _set_rank(self, rank)

    @property
    def id(self) -> str:
        return f"event:{self.seq}@{self.rank}"

    @property
    def moment(self) -> tuple[int, int]:
        """When it happened. What a device told is written later than that: the order of ``seq`` is another one."""
        return self.time_ns, self.seq


_set_kind, _set_step, _set_fields, _set_seq, _set_time_ns, _set_rank = (
    getattr(Event, name).__set__ for name in ("kind", "step", "fields", "seq", "time_ns", "rank")
)


@dataclass(frozen=True, slots=True)
class Span:
    brick: Brick
    step: int
    start_ns: int
    end_ns: int
    phase: str = "forward"
    id: int = 0
    parent: int = 0
    device_ns: int | None = None
    stream: int | None = None
    coordinates: Coordinates = Coordinates()
    attributes: dict[str, Any] = field(default_factory=dict)
    rank: int = 0

    @property
    def host_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Sample:
    """Statistics of one tensor at one step. ``None`` means it was not measured, never zero."""

    brick: Brick
    tensor: str
    role: str
    step: int
    numel: int = 0
    nan: int | None = None
    inf: int | None = None
    absmax: float | None = None
    l2: float | None = None
    mean: float | None = None
    zero_fraction: float | None = None
    ratio: float | None = None
    checksum: int | None = None
    histogram: tuple[int, ...] | None = None
    scale: float | None = None
    micro: int = 0
    time_ns: int = 0
    rank: int = 0

    @property
    def id(self) -> str:
        return f"{self.role}:{self.step}:{self.tensor}@{self.rank}"


@dataclass(frozen=True, slots=True)
class RunMeta:
    run_id: str
    script: str = ""
    argv: tuple[str, ...] = ()
    started_ns: int = 0
    level: str = "standard"
    version: str = ""
    schema: int = SCHEMA
    source: str = "capture"
    host: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


Record = Event | Span | Sample
