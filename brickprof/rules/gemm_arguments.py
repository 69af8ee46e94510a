"""Sizes and strides that changed places on their way into a kernel.

Enters: ``arguments`` events: what launches of Triton kernels were told, and how their tensors lie. Leaves:
C-GEMMARGS-001 with the kernel as its brick. A stride is taken for one of the tensor that its name begins with, and it
goes with the size that its index is bounded by in the source, else with the one of its letter (``stride_am``, ``M``).
Then a tensor is told as a matrix, and either it is one, or not:

    (M, stride_am), (K, stride_ak)  =  the tensor's own dimensions, transposed or reshaped       agrees
    a stride that is not the tensor's, and is a size, or a stride of another's; elements lie
    upon one another or behind the end (in either order, where only letters tell the order)     exchanged
    strides that are the tensors', sizes that fit them all once they change places               exchanged
    anything else: slices, padded sizes, strides in bytes, a convention of its own               not told

Where all sizes are equal nothing can be told either; nor of the strides of a kernel that casts its pointers: they may
be in another unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import layouts, outcomes, stride_names, wording
from brickprof.rules.device import has_device
from brickprof.rules.layouts import Dims
from brickprof.rules.names import whole
from brickprof.rules.story import Story

_THRESHOLD = "a tensor's sizes and strides are those that a kernel is told"
_LETTERS = ("m", "n", "k")
_MOST_SIZES, _MOST_FINDINGS, _MOST_DIMENSIONS = 4, 8, 16
_BY_ITSELF = "`brickprof check operator` judges a kernel by itself"
_FOLLOWS = frozenset({
    "canary", "overwritten", "sanitizer", "out-of-bounds", "nonfinite", "diverged", "spike", "exploding",
    "not-learning", "plateau", "slow-learning", "optimizer-state", "crashed", "exited", "crashed-by-signal",
})  # fmt: skip


class _Stride(NamedTuple):
    name: str
    value: int
    size: str
    """The name of the size that goes with it, if that is known."""
    bounded: bool
    """Whether the source says so."""


class _Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    told: tuple[_Stride, ...]

    @property
    def dims(self) -> Dims:
        return tuple(zip(self.shape, self.strides, strict=True))

    @property
    def matrix(self) -> bool:
        """Whether it is told as one."""
        sizes = {each.size for each in self.told}
        return len(self.told) == len(sizes) == 2 and "" not in sizes

    def as_told(self, sizes: dict[str, int]) -> Dims:
        return tuple((sizes[each.size], each.value) for each in self.told)

    @property
    def words(self) -> str:
        return f"{self.name} is {_listed(self.shape)} with strides {_listed(self.strides)}"


class _Launch(NamedTuple):
    event: Event
    numbers: dict[str, int]
    tensors: tuple[_Tensor, ...]

    @property
    def matrices(self) -> list[_Tensor]:
        return [tensor for tensor in self.tensors if tensor.matrix]

    @property
    def casts(self) -> bool:
        return bool(self.event.fields.get("casts"))

    @property
    def sizes(self) -> dict[str, int]:
        """What its matrices are told to be."""
        told = {each.size for tensor in self.matrices for each in tensor.told}
        return {name: value for name, value in self.numbers.items() if name in told}


class _Exchange(NamedTuple):
    """Numbers that changed places."""

    symptom: str
    contradiction: str
    reason: str
    certainty: float


class GemmArguments:
    contract = "C-GEMMARGS-001"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        launches = [_launch(event) for rank in story.ranks for event in story.events("arguments", rank)]
        wrong = [(launch, found) for launch in launches if (found := _exchanged(launch)) is not None]
        if wrong:
            return outcomes.broken(contract, list(_violations(contract, wrong)), _THRESHOLD)
        agreeing = [launch for launch in launches if _agrees(launch)]
        if agreeing:
            return outcomes.held(contract, _passed(agreeing, len(launches)) + _more(story), _THRESHOLD)
        return _unjudged(story, contract, len(launches))


def _unjudged(story: Story, contract: Contract, launches: int) -> ContractResult:
    if launches:
        kinds = wording.count(launches, "kind of launch", "kinds of launches")
        return outcomes.unjudged(
            contract, f"of {kinds} of Triton kernels none tells its sizes and strides apart by name and by value"
        )
    if not story.trained:
        return outcomes.vacuous(contract, "nothing was trained")
    if not has_device(story):
        return outcomes.unjudged(contract, f"no GPU: no kernel was launched; {_BY_ITSELF}")
    return outcomes.unjudged(
        contract,
        f"no launch arguments of a Triton kernel were recorded; --level deep does, if there are any; {_BY_ITSELF}",
    )


def _passed(agreeing: list[_Launch], of: int) -> str:
    kernels = len({str(launch.event.fields.get("kernel")) for launch in agreeing})
    some = f"{len(agreeing):,} of {wording.count(of, 'kind of launch', 'kinds of launches')}"
    return f"{some}, of {wording.count(kernels, 'Triton kernel')}: sizes and strides are those of the tensors"


def _more(story: Story) -> str:
    looked = [last.fields for rank in story.ranks if (last := story.last("canaries", rank)) is not None]
    more = sum(whole(fields.get("unwritten")) for fields in looked)
    return (
        f"; {wording.count(more, 'launch', 'launches')} more, with other numbers, were not written down" if more else ""
    )


def _agrees(launch: _Launch) -> bool:
    """Whether every matrix is as it is told, and one of them would not be, were two sizes exchanged."""
    sizes = launch.sizes
    dims = [(tensor, tensor.as_told(sizes)) for tensor in launch.matrices]
    if not all(layouts.normal(told) == layouts.normal(tensor.dims) for tensor, told in dims):
        return False
    return any(len({size for size, _ in told}) > 1 for _, told in dims) or _agrees_by_batch(launch)


def _agrees_by_batch(launch: _Launch) -> bool:
    """The same of tensors with more dimensions: those whose size is known are among the tensor's own."""
    known = [
        (tensor, [(launch.numbers[each.size], each.value) for each in tensor.told if each.size])
        for tensor in launch.tensors if len(tensor.told) == len(tensor.shape) > 2
    ]  # fmt: skip
    known = [(tensor, pairs) for tensor, pairs in known if len({size for size, _ in pairs}) > 1]
    return bool(known) and all(set(pairs) <= set(tensor.dims) for tensor, pairs in known)


def _exchanged(launch: _Launch) -> _Exchange | None:
    sizes = launch.sizes
    odd = [
        tensor for tensor in launch.matrices
        if layouts.normal(tensor.as_told(sizes)) != layouts.normal(tensor.dims)
    ]  # fmt: skip
    strides = [] if launch.casts else [_foreign(launch, tensor) for tensor in odd]
    if strides and all(strides):
        return strides[0]
    return _sizes_exchanged(launch, odd) if odd else None


def _foreign(launch: _Launch, tensor: _Tensor) -> _Exchange | None:
    """A stride that is another's."""
    told = tensor.as_told(launch.sizes)
    (rows, row), (columns, column) = told
    sure = all(each.bounded for each in tensor.told)
    orders = (told,) if sure else (told, ((rows, column), (columns, row)))
    wrong = next((each for each in tensor.told if each.value > 1 and each.value not in tensor.strides), None)
    if wrong is None or {0, 1} & {*tensor.shape} or not layouts.is_matrix(tensor.shape, rows, columns):
        return None
    if not all(_harms(tensor, dims) for dims in orders) or _multiple(tensor) or _somebody_elses(launch, told):
        return None
    source = _source(launch, tensor, wrong.value)
    if not source:
        return None
    contradiction = f"{tensor.words}; it is told {_numbers({each.name: each.value for each in tensor.told})}."
    reason = f"{wrong.value:,} is {source}, and none of {tensor.name}'s strides: {_effect(tensor, told)}."
    return _Exchange(f"is given {wrong.name} = {wrong.value:,}, which is {source}", contradiction, reason, 0.95)


def _harms(tensor: _Tensor, dims: Dims) -> bool:
    return layouts.meets(*dims) or layouts.reach(dims) > layouts.reach(tensor.dims)


def _effect(tensor: _Tensor, dims: Dims) -> str:
    held, reached = layouts.reach(tensor.dims), layouts.reach(dims)
    if reached > held:
        return f"it reaches element {reached:,} of {tensor.name}, which ends with element {held:,}"
    return f"several of its places are one element of {tensor.name}"


def _multiple(tensor: _Tensor) -> bool:
    """Whether the strides are the tensor's in another unit, such as bytes."""
    told, own = sorted(each.value for each in tensor.told), sorted(tensor.strides)
    return (
        len(told) == len(own)
        and own[0] > 0
        and all(one * own[0] == told[0] * each for one, each in zip(told, own, strict=True))
    )


def _somebody_elses(launch: _Launch, told: Dims) -> bool:
    """Whether they fit a tensor that no stride was found for by name: then it is our reading that is wrong."""
    return any(not each.told and layouts.normal(each.dims) == layouts.normal(told) for each in launch.tensors)


def _source(launch: _Launch, tensor: _Tensor, value: int) -> str:
    """What else the number is."""
    sizes = [name for name, size in launch.sizes.items() if size == value]
    others = [each.name for each in launch.tensors if each.name != tensor.name and value in each.strides]
    if sizes:
        return sizes[0]
    return f"a stride of {others[0]}" if others else ""


def _sizes_exchanged(launch: _Launch, odd: list[_Tensor]) -> _Exchange | None:
    """Sizes that fit every matrix in another order, and none of which the source has another use for."""
    sizes, matrices = launch.sizes, launch.matrices
    sure = all(each.bounded for tensor in odd for each in tensor.told)
    own = all(sorted(each.value for each in tensor.told) == sorted(tensor.strides) for tensor in matrices)
    if len(matrices) < 2 or len(sizes) > _MOST_SIZES or not sure or not own:
        return None
    orders = (dict(zip(sizes, values, strict=True)) for values in permutations(sizes.values()))
    fitting = [order for order in orders if all(_exactly(tensor, order) for tensor in matrices)]
    if not fitting:
        return None
    right = fitting[0]
    moved = {name: value for name, value in sizes.items() if right[name] != value}
    tensor = odd[0]
    says = _numbers({each.size: right[each.size] for each in tensor.told})
    contradiction = f"{tensor.words}; the kernel goes through them with {_sizes_of(tensor)}: {says}."
    reason = f"With {_numbers(right)} the sizes fit {_and([each.name for each in matrices])}; as told they do not."
    return _Exchange(f"is told {_numbers(moved)}, in each other's places", contradiction, reason, 0.93)


def _sizes_of(tensor: _Tensor) -> str:
    return _and([f"{each.name} up to {each.size}" for each in tensor.told])


def _exactly(tensor: _Tensor, sizes: dict[str, int]) -> bool:
    return sorted(tensor.as_told(sizes)) == sorted(tensor.dims)


def _violations(contract: Contract, wrong: list[tuple[_Launch, _Exchange]]) -> Iterator[Violation]:
    """One for each kernel and line."""
    by_line: dict[tuple[str, str], list[tuple[_Launch, _Exchange]]] = {}
    for launch, found in wrong:
        fields = launch.event.fields
        key = str(fields.get("kernel", "a kernel")), str(fields.get("site") or "")
        by_line.setdefault(key, []).append((launch, found))
    for (kernel, site), many in list(by_line.items())[:_MOST_FINDINGS]:
        events = [launch.event for launch, _ in many]
        yield _violation(contract, kernel, site, many[0][1], events)


def _violation(contract: Contract, kernel: str, site: str, found: _Exchange, events: list[Event]) -> Violation:
    first, evidence = events[0], tuple(event.id for event in events[:_MOST_FINDINGS])
    at = f", launched at {site}," if site else ""
    return Violation(
        contract.id, "arguments", Severity.ERROR, f"the Triton kernel {kernel}{at} {found.symptom}",
        first.step, first.step, kernel, "kernel", first.rank, evidence,
        cause="argument-order-swapped", certainty=found.certainty, static=True, explains=_FOLLOWS,
        whys=(
            Because("What do its tensors say?", found.contradiction, kernel, (first.id,)),
            Because("Where is the number from?", found.reason, kernel, (first.id,)),
        ),
        details={"question": "Is every kernel told what its tensors are?", "asked": "Which numbers?", "site": site},
        action="Pass sizes and strides by name, each stride from the tensor it belongs to (c.stride(0)).",
        experiment="Launch it once on sizes that all differ, and compare with torch.matmul.",
    )  # fmt: skip


def _launch(event: Event) -> _Launch:
    numbers = {**_whole(event.fields.get("constants")), **_whole(event.fields.get("sizes"))}
    rows = event.fields.get("arguments")
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    pairs = ((str(row.get("name")), _lengths(row.get("shape")), _lengths(row.get("strides"))) for row in rows)
    found = {
        name: (shape, strides) for name, shape, strides in pairs
        if shape is not None and strides is not None and len(shape) == len(strides)
    }  # fmt: skip
    told: dict[str, list[_Stride]] = {name: [] for name in found}
    bounds = event.fields.get("bounds")
    for name, value in numbers.items():
        if (owned := stride_names.owner(name, found)) is not None:
            told[owned[0]].append(_Stride(name, value, *_size(name, owned[1], numbers, bounds)))
    return _Launch(event, numbers, tuple(_Tensor(name, *found[name], tuple(told[name])) for name in found))


def _size(name: str, letter: str, numbers: dict[str, int], bounds: object) -> tuple[str, bool]:
    """The size that goes with a stride, and whether the source says so."""
    listed = bounds.get(name) if isinstance(bounds, dict) else None
    if isinstance(listed, list) and listed:
        known = len(listed) == 1 and isinstance(listed[0], str) and listed[0] in numbers
        return (listed[0], True) if known else ("", False)
    if letter in _LETTERS:
        return next((each for each in numbers if each.lower() == letter), ""), False
    return "", False


def _whole(value: object) -> dict[str, int]:
    return {str(name): whole(each) for name, each in value.items()} if isinstance(value, dict) else {}


def _lengths(value: object) -> tuple[int, ...] | None:
    """Sizes or strides; None where they are no tensor's."""
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return None
    found = tuple(whole(each, -1) for each in value)
    return found if min(found, default=0) >= 0 else None


def _listed(numbers: tuple[int, ...]) -> str:
    return f"({', '.join(f'{each:,}' for each in numbers)})"


def _numbers(named: dict[str, int]) -> str:
    return _and([f"{name} = {value:,}" for name, value in named.items()])


def _and(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


RULE = GemmArguments
