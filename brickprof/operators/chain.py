"""RMSNorm, matmul, attention, LM head, logprob in a row: whether a token's log probability hangs on its company.

Enters: five operators and the functions in their places. Leaves: a ``Chain``: each link against itself (to the byte)
and against its own gold, and the aggregates at the end. A drift is blamed on the first link of the chain that fails;
what fails behind it got other inputs and is not told as a finding of its own. Where every link holds and the end drifts
all the same, it is the integration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from brickprof.operators import links
from brickprof.operators.bits import compare, within
from brickprof.operators.chained import Aggregate, Chain, Link
from brickprof.operators.gold import plain_fp32, widened
from brickprof.operators.judgement import Verdict, overall
from brickprof.operators.links import LINKS, Pass, Stopped, Tokens
from brickprof.operators.operator import Operator, Sizes
from brickprof.operators.problem import Function
from brickprof.operators.tolerances import CLIP, KL_OF_A_CHAIN, LOGPROB_OF_A_CHAIN, tolerance

SMALL = {"batch": 3, "length": 20, "heads": 2, "channels": 16, "vocabulary": 50}
LARGE = {"batch": 8, "length": 512, "heads": 16, "channels": 128, "vocabulary": 32_000}
INTEGRATION = "integration"
Tell = Callable[[str], None]


def judge_chain(
    operators: Mapping[str, Operator],
    functions: Mapping[str, Function],
    *,
    dtype: str,
    device: str = "cpu",
    seed: int = 0,
    sizes: Sizes = SMALL,
    tell: Tell | None = None,
) -> Chain:
    """Judges the chain through ``functions`` (by operator name); those of the operators where none is given."""
    missing = [name for name in LINKS if name not in operators]
    if missing:
        return Chain("NOT_EVALUATED", dtype, device, seed, dict(sizes), why=f"not registered: {', '.join(missing)}")
    chosen = {name: functions.get(name, operators[name].function) for name in LINKS}
    return _Walk(operators, chosen, dtype, device, seed, sizes, tell or (lambda _: None)).judged()


@dataclass
class _Walk:
    operators: Mapping[str, Operator]
    functions: Mapping[str, Function]
    dtype: str
    device: str
    seed: int
    sizes: Sizes
    tell: Tell
    parted: dict[str, str] = field(default_factory=dict)
    """Links that differ from themselves, and where."""
    inaccurate: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)

    def judged(self) -> Chain:
        tokens = links.tokens(self.sizes, self.dtype, self.device, self.seed)
        self.tell("chain: the batch")
        try:
            baseline = links.walk(self.functions, tokens)
        except Stopped as stop:
            self.inaccurate[stop.link] = str(stop)
            return self._chain((), reached=LINKS.index(stop.link))
        self._accuracy(baseline)
        against_itself = [self._varied(each, tokens, baseline) for each in links.variants(tokens)]
        aggregates = [
            self._aggregate("itself", torch.cat([each for each in against_itself if each is not None] or [_NOTHING])),
            self._aggregate("the fp32 gold", baseline.logprob.double() - self._gold(tokens).double()),
        ]
        return self._chain(tuple(aggregates), reached=len(LINKS))

    def _accuracy(self, baseline: Pass) -> None:
        """Each link on the inputs that it got: what an earlier one spoilt counts for nobody else."""
        for name in LINKS:
            operator = self.operators[name]
            with torch.no_grad(), plain_fp32(self.device):
                truth = operator.reference(**widened(baseline.arguments[name]))
            difference = within(truth, baseline.raw[name], tolerance(operator.family, self.dtype))
            self.errors[name] = difference.max_error
            if difference.mismatches:
                self.inaccurate[name] = difference.note or (
                    f"{difference.mismatches:,} of {difference.elements:,} values are beyond the tolerance"
                )

    def _varied(self, variant: links.Variant, tokens: Tokens, baseline: Pass) -> Tensor | None:
        """What the variant does to the log probabilities; None when it did not come that far."""
        self.tell(f"chain: {variant.transform} {variant.name}")
        try:
            outcome = links.walk(self.functions, variant.build(tokens))
        except Stopped as stop:
            self.parted.setdefault(stop.link, f"{variant.transform} {variant.name}: {stop}")
            return None
        for name in LINKS:
            difference = compare(variant.was(baseline.by_token[name]), variant.now(outcome.by_token[name]))
            if difference.mismatches:
                told = f"{difference.mismatches:,} of {difference.elements:,} values part"
                self.parted.setdefault(name, f"{variant.transform} {variant.name}: {told}")
        return (variant.now(outcome.logprob).double() - variant.was(baseline.logprob).double()).reshape(-1)

    def _gold(self, tokens: Tokens) -> Tensor:
        with plain_fp32(self.device):
            references = {name: self.operators[name].reference for name in LINKS}
            return links.walk(references, tokens.widened()).logprob

    def _aggregate(self, against: str, d: Tensor) -> Aggregate:
        if not d.numel():
            return Aggregate(against, "NOT_EVALUATED", 0.0, 0.0, 0.0, LOGPROB_OF_A_CHAIN[self.dtype], 0)
        ratio = d.exp()
        most = float(d.abs().nan_to_num(nan=float("inf")).max())
        kl = float((ratio - 1 - d).mean().nan_to_num(nan=float("inf")))
        clipped = float((~((ratio >= CLIP[0]) & (ratio <= CLIP[1]))).double().mean())
        allowed = LOGPROB_OF_A_CHAIN[self.dtype]
        holds = most <= allowed and kl <= KL_OF_A_CHAIN and clipped == 0
        return Aggregate(against, "PASS" if holds else "FAIL", most, kl, clipped, allowed, d.numel())

    def _chain(self, aggregates: tuple[Aggregate, ...], reached: int) -> Chain:
        blame = next(iter([n for n in LINKS if n in self.parted] or [n for n in LINKS if n in self.inaccurate]), "")
        if not blame and any(each.verdict == "FAIL" for each in aggregates):
            blame = INTEGRATION
        told = tuple(self._link(name, blame, at < reached) for at, name in enumerate(LINKS))
        verdicts: list[Verdict] = [*(link.verdict for link in told), *(each.verdict for each in aggregates)]
        why = self.parted.get(blame) or self.inaccurate.get(blame) or ""
        if blame == INTEGRATION:
            why = "every link holds and the end drifts: masks, tokenizer or checkpoint"
        return Chain(
            overall(verdicts), self.dtype, self.device, self.seed, dict(self.sizes), told, aggregates, blame, why
        )

    def _link(self, name: str, blame: str, reached: bool) -> Link:
        index, error = LINKS.index(name), self.errors.get(name, 0.0)
        why = self.parted.get(name) or self.inaccurate.get(name) or ""
        if name == blame:
            return Link(name, index, "FAIL", error, why)
        if not reached:
            return Link(name, index, "NOT_EVALUATED", error, f"{blame} stopped the chain")
        if why and blame in LINKS and index > LINKS.index(blame):
            return Link(name, index, "NOT_EVALUATED", error, f"downstream of {blame}")
        return Link(name, index, "FAIL" if why else "PASS", error, why)


_NOTHING = torch.empty(0, dtype=torch.float64)
