"""The two files that a finding becomes: a contract and a test, as a person would have written them.

Enters: a finding, what is proposed, the command to run. Leaves: text. Everything that came from a run is cleaned, and
stands in literals of Python and YAML that cannot be anything else.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brickprof.contracts import formulas
from brickprof.diagnosis.proposals import Proposal
from brickprof.diagnosis.words import words as in_words
from brickprof.ratchet.command import Command, Hidden, Word
from brickprof.text import capital, clean

if TYPE_CHECKING:
    from brickprof.diagnosis import Finding

PREFIX = "C-OWN-"
_WIDTH = 88
"""What ruff and black take without a word."""
_YAML_WIDTH = 100
_PLAIN_SCALAR = re.compile(r"[A-Za-z][A-Za-z0-9 ,.;()|/<>=_*%+'$\[\]-]*")
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"})
_UNDETERMINED = "undetermined"


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that the two files say."""

    name: str
    """A slug: ``learning-rate-too-high``."""
    run_name: str
    finding: Finding
    proposals: tuple[Proposal, ...]
    command: Command
    contract_file: str
    test_file: str

    @property
    def contract(self) -> str:
        return f"{PREFIX}{self.name.upper()}"

    @property
    def steps(self) -> int:
        """How many steps a training has to make to show what this is about."""
        return max(self.finding.first_step, self.finding.detected_step) + 1


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "finding"


def default_name(finding: Finding) -> str:
    return slug(finding.contract if finding.root_cause == _UNDETERMINED else finding.root_cause)


# -- the contract


def contract(case: Case) -> str:
    """The YAML of the contract, in the form of the library's."""
    finding = case.finding
    lines = [
        *_comment(f"From finding {finding.id} of {case.run_name}, by `brickprof ratchet`; it is yours to edit.", 0),
        "metadata:",
        f"  id: {case.contract}",
        "  version: 1.0.0",
        *_entry("description", " ".join(proposal.says for proposal in case.proposals), 2),
        "  depends_on:",
        f"    - {scalar(finding.contract)}",
        *_entry("motivation", _motivation(finding), 0),
        "obligations:",
    ]
    for proposal in case.proposals:
        lines += [
            f"  - id: {proposal.id}",
            f"    kind: {proposal.kind}",
            *_entry("property", proposal.says, 4),
            f"    formal: {scalar(proposal.formal, exact=True)}",
            *([f"    tolerance: {_number(proposal.tolerance)}"] if proposal.tolerance else []),
            *([f"    applies_to: {scalar(proposal.applies_to)}"] if proposal.applies_to else []),
        ]
    if any(proposal.thresholds for proposal in case.proposals):
        lines.append("thresholds:")
    for proposal in case.proposals:
        for key, value in proposal.thresholds.items():
            lines += [*_comment(proposal.because, 2), f"  {key}: {_number(value)}"]
    lines.append("falsification:")
    for place, proposal in enumerate(case.proposals, start=1):
        lines += [
            f"  - id: FALSIFY-{case.name.upper()}-{place:03d}",
            f"    rule: {proposal.id}",
            "    prediction: The training of this test keeps it; the run it was written from did not.",
            f"    test: {scalar(case.test_file)}",
            *_entry("if_fails", _if_fails(finding), 4),
        ]
    return "\n".join(lines) + "\n"


def _entry(key: str, text: str, indent: int) -> list[str]:
    """A key and its text: on one line where it fits, folded below it where it does not."""
    one = f"{' ' * indent}{key}: {scalar(text)}"
    if len(one) <= _YAML_WIDTH:
        return [one]
    return [f"{' ' * indent}{key}: >", *(f"{' ' * (indent + 2)}{line}" for line in _wrapped(text, indent + 2))]


def _motivation(finding: Finding) -> str:
    told = [_sentence(finding.symptom), f"The cause: {in_words(finding.root_cause)}."]
    told += [clean(why.finding, limit=300) for why in finding.whys[-1:]]
    return " ".join(told)


def _if_fails(finding: Finding) -> str:
    return clean(finding.action, limit=300) or "Look at the whys of the finding."


def _comment(text: str, indent: int) -> list[str]:
    return [f"{' ' * indent}# {line}" for line in _wrapped(text, indent + 2)]


def _wrapped(text: str, indent: int, width: int = _YAML_WIDTH) -> list[str]:
    lines = textwrap.wrap(_visible(text), width - indent, break_on_hyphens=False, break_long_words=False)
    return lines or ["-"]


def scalar(text: str, *, exact: bool = False) -> str:
    """``text`` as a YAML scalar: plain where nothing about it can be misread. What is not ``exact`` is for people."""
    shown = text if exact else clean(text, limit=600)
    plain = _PLAIN_SCALAR.fullmatch(shown) and shown.lower() not in _YAML_WORDS and not shown.endswith(" ")
    return shown if plain else _quoted(shown)


def _quoted(text: str) -> str:
    body = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if _seen(char) else _yaml_escape(char) for char in body) + '"'


def _seen(char: str) -> bool:
    return char.isprintable() and clean(char) == char


def _yaml_escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _number(value: float) -> str:
    """As a person writes it; YAML 1.1 takes an exponent for a number only behind a point."""
    shown = f"{value:.10g}"
    mantissa, exponent, power = shown.partition("e")
    return f"{mantissa}.0e{power}" if exponent and "." not in mantissa else shown


# -- the test


def regression_test(case: Case) -> str:
    """The regression test: runs the training again, and asks whether what must hold does."""
    lines = [*_docstring(case), ""]
    if any(isinstance(word, Hidden) for word in case.command.words):
        lines += ["import os", ""]
    lines += _training(case.command.words)
    lines += [f"STEPS = {case.steps}  # what happened showed by then: fewer would prove nothing", "", ""]
    lines += [
        f"def test_{case.name.replace('-', '_')}_does_not_come_back(brickprof_run):",
        *_call(case.command),
        "",
        "    run.assert_finished()",
        "    run.assert_reached(STEPS)",
        f"    run.assert_contract({literal(case.contract)})",
        f"    run.assert_contract({literal(case.finding.contract)})",
    ]
    if case.finding.root_cause != _UNDETERMINED:
        lines.append(f"    run.assert_not_found({literal(case.finding.root_cause)})")
    return "\n".join(lines) + "\n"


def _docstring(case: Case) -> list[str]:
    title = capital(in_words(case.finding.root_cause))
    told = (
        f"Found in {case.run_name} ({case.finding.id}): {clean(case.finding.symptom, limit=300)}. "
        f"What must hold instead is {case.contract}, in {case.contract_file}."
    )
    how = "The training below is the one that was recorded: make it as short as it can be and still reach STEPS."
    body = [*_wrapped(told, 0, _WIDTH), "", *_wrapped(how, 0, _WIDTH)]
    quoted = [line.replace("\\", "\\\\").replace('"""', "'''") for line in (f"{title}: once was enough.", "", *body)]
    return [f'"""{quoted[0]}', *quoted[1:], '"""']


def _training(words: tuple[Word, ...]) -> list[str]:
    values = [_expression(word) for word in words]
    one = f"TRAINING = ({', '.join(values)}{',' if len(values) == 1 else ''})"
    if len(one) <= _WIDTH:
        return [one]
    return ["TRAINING = (", *(f"    {value}," for value in values), ")"]


def _call(command: Command) -> list[str]:
    given = {"cwd": command.cwd, "config": command.config, "level": command.level}
    named = [f"{name}={literal(value)}" for name, value in given.items() if value]
    one = f"    run = brickprof_run({', '.join(['*TRAINING', *named])})"
    if len(one) <= _WIDTH:
        return [one]
    return ["    run = brickprof_run(", *(f"        {each}," for each in ("*TRAINING", *named)), "    )"]


def _expression(word: Word) -> str:
    if not isinstance(word, Hidden):
        return literal(word)
    value = f"os.environ[{literal(word.variable)}]"
    return f"{literal(word.before)} + {value}" if word.before else value


def literal(text: str) -> str:
    """``text`` as a Python literal, in the quotes that a formatter would choose."""
    quote = "'" if text.count('"') > text.count("'") else '"'
    return quote + "".join(_escaped(char, quote) for char in text) + quote


def _escaped(char: str, quote: str) -> str:
    known = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", quote: f"\\{quote}"}
    if char in known:
        return known[char]
    if _seen(char):
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _visible(text: str) -> str:
    """One line of text in which everything can be seen."""
    shown = clean(text, limit=2000)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in shown)


def _sentence(text: str) -> str:
    shown = clean(text, limit=300)
    return capital(shown) + ("" if shown.endswith((".", "!", "?")) else ".")


def measure(proposal: Proposal) -> str:
    """The formula with its number in it, for people."""
    told = formulas.parse(proposal.formal, proposal.thresholds)
    if isinstance(told, str) or told.contract or told.right not in proposal.thresholds:
        return proposal.formal
    return proposal.formal.removesuffix(told.right) + f"{proposal.thresholds[told.right]:g}"
