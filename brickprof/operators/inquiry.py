"""What a user asks of ``brickprof check operator``, and the answer as plain data.

Enters: words: names, a candidate, types, sizes, transforms, a device. Leaves: a document that reports show and files
keep. Wrong words are a ``UsageError`` that says what there is.
"""

from __future__ import annotations

import difflib
import platform
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from brickprof.errors import NothingToJudge, UsageError
from brickprof.operators import candidates, launch
from brickprof.operators.chain import LARGE, SMALL, judge_chain
from brickprof.operators.chained import Chain
from brickprof.operators.drift import Drift
from brickprof.operators.judge import judge, replay
from brickprof.operators.judgement import JUDGMENTS, Cell, Judgement, overall
from brickprof.operators.links import LINKS
from brickprof.operators.operator import Operator, Sizes, all_operators
from brickprof.operators.problem import DTYPES, WORDS, Problem
from brickprof.operators.subject import OWN
from brickprof.operators.torch_candidates import CANDIDATES
from brickprof.operators.transforms import TRANSFORMS

SCHEMA = 1
Tell = Callable[[str], None]
INTERPRETED = (
    "Triton kernels run in its interpreter here (TRITON_INTERPRET=1): there is no GPU, or it is not asked for."
)
NO_BF16 = "Triton's interpreter gets bf16 arithmetic wrong; --dtype bf16 runs it all the same"


@dataclass(frozen=True)
class Inquiry:
    names: tuple[str, ...] = ()
    candidate: str = OWN
    reference: str = ""
    dtypes: tuple[str, ...] = ()
    """Empty: all that an operation has."""
    sizes: tuple[Mapping[str, int], ...] = ()
    large: bool = False
    transforms: tuple[str, ...] = TRANSFORMS
    device: str = "auto"
    seed: int = 0
    chain: bool = False

    def answer(self, tell: Tell | None = None) -> dict[str, Any]:
        device = prepared(self.device)
        known = registered()
        chosen = _named(known, self.names, none_is_all=not self.chain)
        if self.candidate not in (OWN, candidates.TORCH) and len(chosen) != 1:
            raise UsageError("a candidate stands for one operation.", "Say for which, such as: --like rmsnorm")
        if self.large and self.candidate == OWN and launch.interpreted():
            raise UsageError("--large needs a GPU: in Triton's interpreter it would take days.", "Or give --sizes.")
        if self.reference and len(chosen) != 1:
            raise UsageError("a reference is that of one operation.", "Say of which, such as: --like rmsnorm")
        with warnings.catch_warnings():
            # NaN in the padding is meant; numpy, in the interpreter, is surprised by it.
            warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.runtime\.interpreter")
            judged = [self._judged(operator, device, tell) for operator in chosen]
            chains = self._chains(known, chosen, device, tell) if self.chain else []
        notes = [INTERPRETED] if launch.interpreted() and self.candidate != candidates.TORCH else []
        return document(judged, chains, device, self.seed, notes)

    def _judged(self, operator: Operator, device: str, tell: Tell | None) -> Judgement:
        function = candidates.function_of(self.candidate, operator)
        reference = candidates.loaded(self.reference, "--reference") if self.reference else None
        dtypes, left_out = self._types(operator)
        if function is None:
            dtypes, left_out = [], dict.fromkeys([*dtypes, *left_out], f"torch has no {operator.name} of its own")
        sizes = [sized(operator, each) for each in self.sizes] or (self.large and operator.large) or operator.sizes
        found = judge(
            operator, candidate=function, reference=reference, dtypes=dtypes, sizes=sizes, device=device,
            seed=self.seed, transforms=self.transforms, names=(self.candidate, self.reference or OWN), tell=tell,
        )  # fmt: skip
        absent = [
            Cell(dtype, judgment, "NOT_EVALUATED", why=why) for dtype, why in left_out.items() for judgment in JUDGMENTS
        ]
        return replace(found, cells=(*found.cells, *absent))

    def _types(self, operator: Operator) -> tuple[list[str], dict[str, str]]:
        """Which types to try, and why others are not tried."""
        has = [WORDS[each] for each in operator.dtypes]
        left_out = {each: f"{operator.name} takes no {each}" for each in self.dtypes if each not in has}
        tried = [each for each in self.dtypes or has if each in has]
        if not self.dtypes and self.candidate == OWN and launch.interpreted() and "bf16" in tried:
            tried.remove("bf16")
            left_out["bf16"] = NO_BF16
        return tried, left_out

    def _chains(
        self, known: Mapping[str, Operator], chosen: Sequence[Operator], device: str, tell: Tell | None
    ) -> list[Chain]:
        """Through our own operations, or torch's, or ours with one of somebody else's among them."""
        links = {name: known[name] for name in LINKS if name in known}
        foreign = {operator.name for operator in chosen} if self.candidate != candidates.TORCH else set(links)
        names = {name: self.candidate if name in foreign else OWN for name in links}
        functions = {name: candidates.function_of(word, links[name]) for name, word in names.items()}
        whole = {name: function for name, function in functions.items() if function is not None}
        dtypes = self.dtypes or tuple(
            each for each in DTYPES if each != "bf16" or self.candidate != OWN or not launch.interpreted()
        )
        sizes = LARGE if self.large else SMALL
        made = [
            judge_chain(links, whole, dtype=dtype, device=device, seed=self.seed, sizes=sizes, tell=tell)
            for dtype in dtypes
        ]
        return [replace(each, candidates=names) for each in made]


def again(drift: Drift, tell: Tell | None = None) -> Drift | None:
    """``drift`` measured anew with the functions that its words name; None when it is gone."""
    prepared(drift.device)
    (operator,) = _named(registered(), (drift.operator,), none_is_all=False)
    reference = None if drift.reference in ("", OWN) else candidates.loaded(drift.reference, "--reference")
    function = candidates.function_of(drift.candidate, operator)
    return replay(drift, operator, candidate=function, reference=reference, tell=tell)


def prepared(device: str) -> str:
    """The device that ``device`` means here; on a CPU Triton is told so before anything imports it."""
    resolved = candidates.device_of(device)
    if resolved == "cpu":
        candidates.interpret()
    return resolved


def registered() -> dict[str, Operator]:
    found = all_operators()
    if not found:
        raise NothingToJudge("no operation is registered: kernels/ holds none, and no plugin adds one.")
    return found


def listed() -> list[dict[str, Any]]:
    """What can be judged, and at which sizes."""
    return [
        {
            "operator": each.name, "arguments": _arguments(each), "chain": each.chain, "family": each.family,
            "dtypes": [WORDS[dtype] for dtype in each.dtypes], "rows": list(each.rows),
            "gradients": list(each.differentiable), "sizes": [dict(sizes) for sizes in each.sizes],
            "large": [dict(sizes) for sizes in each.large], "torch": each.name in CANDIDATES,
        }
        for each in registered().values()
    ]  # fmt: skip


def _arguments(operator: Operator) -> list[str]:
    return list(Problem.make(operator, operator.sizes[0], "fp32", "cpu", 0).arguments)


def document(
    judged: Sequence[Judgement], chains: Sequence[Chain], device: str, seed: int, notes: Iterable[str]
) -> dict[str, Any]:
    drifts = {drift.id: drift.to_dict() for judgement in judged for drift in judgement.drifts}
    return {
        "schema": SCHEMA,
        "verdict": overall([*(each.verdict for each in judged), *(chain.verdict for chain in chains)]),
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
        "torch": str(torch.__version__),
        "seed": seed,
        "notes": list(notes),
        "operators": [judgement.to_dict() for judgement in judged],
        "chains": [chain.to_dict() for chain in chains],
        "drifts": list(drifts.values()),
    }


def _named(known: Mapping[str, Operator], names: Sequence[str], *, none_is_all: bool) -> list[Operator]:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}."
            raise UsageError(f"there is no operation {name!r}.", hint)
    return [known[name] for name in dict.fromkeys(names)] or (list(known.values()) if none_is_all else [])


def sized(operator: Operator, given: Mapping[str, int]) -> Sizes:
    """``given`` over the operation's first problem."""
    first = operator.sizes[0]
    for name in given:
        if name not in first:
            told = ",".join(f"{each}={size}" for each, size in first.items())
            raise UsageError(f"--sizes: {operator.name} has no {name!r}.", f"It takes such as: {told}.")
    return {**first, **given}


def types_of(given: str) -> tuple[str, ...]:
    """``fp32,bf16`` as words; nothing is all that an operation has."""
    return _words(given, DTYPES, "--dtype")


def transforms_of(given: str) -> tuple[str, ...]:
    """``T1,T4`` as words; nothing is all."""
    return _words(given, TRANSFORMS, "--transforms") or TRANSFORMS


def _words(given: str, known: Iterable[str], option: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in given.split(",") if word.strip()))
    allowed = list(known)
    for word in words:
        if word not in allowed:
            raise UsageError(f"{option} is {given!r}.", f"Give some of: {','.join(allowed)}.")
    return words


def sizes_of(given: str) -> dict[str, int]:
    """``rows=64,width=128`` as numbers."""
    found = {}
    for part in given.split(","):
        name, _, size = part.strip().partition("=")
        if not name or not size.strip().isdecimal():
            raise UsageError(f"--sizes is {given!r}.", "Give it as rows=64,width=128.")
        found[name.strip()] = int(size)
    return found
