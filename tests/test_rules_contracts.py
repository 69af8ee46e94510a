"""Contracts as data: the library is sound, and a YAML file that makes no sense is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from brickprof import plugins
from brickprof.contracts import registry
from brickprof.contracts.verdicts import ContractResult, Verdict, overall
from brickprof.errors import ConfigurationError
from brickprof.operators.operator import all_operators
from brickprof.records import Event
from brickprof.rules.engine import Engine

GOOD = """\
metadata: {id: C-X-001, version: 1.0.0, description: Something holds.}
motivation: Because.
obligations:
  - {id: holds, kind: bound, property: It holds., tolerance: 1e-5}
thresholds: {most: 3}
"""
WHY, LIMITS = "motivation: Because.", "thresholds: {most: 3}"
DUTIES = "obligations:\n  - {id: holds, kind: bound, property: It holds., tolerance: 1e-5}"


def read(tmp_path, text):
    file = tmp_path / "x.yaml"
    file.write_text(text, encoding="utf-8")
    return registry.read(file)


def rules_by_module():
    """The contracts that the rules of each module judge."""
    found = plugins.discover("brickprof.rules", leave_out=("story",))
    several = {name: [rule.contract for rule in rules] for name, rules in found.exports("RULES").items()}
    for name, rule in found.exports("RULE").items():
        several.setdefault(name, []).append(rule.contract)
    return several


def test_every_rule_has_its_contract_and_every_contract_a_rule():
    library, rules = registry.library(), rules_by_module()
    assert {"C-TRAINSTABLE-001", "C-GRADFLOW-001"} <= set(library)
    judged = {contract for contracts in rules.values() for contract in contracts}
    assert judged - {""} <= set(library)
    of_kernels = {name for name, contract in library.items() if contract.bindings.kernels}
    assert set(library) - of_kernels <= judged
    assert not of_kernels & judged


def test_contracts_of_kernels_and_kernels_name_each_other():
    kernels = {name: operator.contract for name, operator in all_operators().items()}
    library = registry.library()
    bound = {name: contract.bindings.kernels for name, contract in library.items() if contract.bindings.kernels}
    assert set(kernels.values()) <= set(bound)
    for contract, names in bound.items():
        assert set(names) <= {*kernels, "adamw"}, contract
    for name, contract in kernels.items():
        assert name in bound[contract]


def test_tests_that_contracts_name_are_there():
    root = Path(__file__).parents[1]
    for contract in registry.library().values():
        for each in contract.falsification:
            assert (root / each.test).is_file(), (contract.id, each.test)


def test_contracts_name_the_rules_that_judge_them():
    rules = rules_by_module()
    for contract in registry.library().values():
        assert contract.falsification, contract.id
        assert contract.bindings.rules or contract.bindings.kernels, contract.id
        for name in contract.bindings.rules:
            assert contract.id in rules[name], (contract.id, name)


def test_a_sound_contract_is_read(tmp_path):
    contract = read(tmp_path, GOOD)
    assert contract.obligations[0].tolerance == 1e-5
    assert contract.threshold("most") == 3.0


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (WHY, "motivation: Because.\nmotivtion: x", "x.yaml:3: motivtion is unknown"),
        (WHY, "motivation: 7", "x.yaml:2: motivation should be text"),
        (WHY, "motivation: a\nmotivation: b", "x.yaml:3: the key 'motivation' stands here twice"),
        ("motivation: Because.\n", "", "motivation is missing"),
        ("most: 3", "most: .nan", "x.yaml:5: thresholds.most is nan"),
        ("most: 3", "most: -.inf", "thresholds.most is -inf"),
        ("most: 3", "most: yes", "thresholds.most should be a number, not True"),
        ("most: 3", "most: plenty", "thresholds.most should be a number, not 'plenty'"),
        ("kind: bound", "kind: bond", "x.yaml:4: obligations.0.kind is 'bond'"),
        ("C-X-001", "c x", "metadata.id is 'c x'"),
        (LIMITS, "thresholds: &a {most: 3}\nproofs: *a", "x.yaml:6: aliases are not read"),
        (LIMITS, "thresholds: !!python/object:os.system {}", "x.yaml:5: the tag .*os.system is not read"),
        (LIMITS, "thresholds: [", "x.yaml:6:"),
        (LIMITS, "proofs: [{obligation: other, bound: a, strategy: b}]", "no obligation here"),
        (DUTIES, "obligations: []", "obligations is empty"),
        ("obligations:", "obligations: 3\nproofs:", "obligations should be a list, not 3"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_its_place(tmp_path, old, new, complaint):
    assert old in GOOD
    with pytest.raises(ConfigurationError, match=complaint):
        read(tmp_path, GOOD.replace(old, new))


def test_huge_binary_and_absent_files_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="bytes"):
        read(tmp_path, GOOD + "#" * registry.MAX_BYTES)
    (tmp_path / "y.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigurationError):
        registry.read(tmp_path / "y.yaml")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        registry.read(tmp_path / "z.yaml")
    with pytest.raises(ConfigurationError, match=r"C-TRAINSTABLE-001"):
        registry.find("C-NONE")


def test_two_files_with_one_id_are_refused(tmp_path):
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(GOOD, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"a\.yaml defines already"):
        registry.read_folder(tmp_path)


def test_only_a_pass_is_a_pass():
    assert overall([Verdict.PASS, Verdict.NOT_EVALUATED]) is Verdict.PASS
    assert overall([Verdict.PASS, Verdict.FAIL]) is Verdict.FAIL
    assert overall([Verdict.VACUOUS, Verdict.NOT_EVALUATED]) is Verdict.VACUOUS
    assert overall([]) is Verdict.NOT_EVALUATED


class Failing:
    contract = "C-THEIRS-001"

    def feed(self, record):
        raise ZeroDivisionError("theirs")

    def finish(self, run):
        raise AssertionError("it is switched off")


class Fine:
    contract = "C-FINE-001"

    def feed(self, record):
        self.fed = True

    def finish(self, run):
        return ContractResult(self.contract, Verdict.PASS)


def test_a_rule_that_fails_takes_nothing_with_it():
    engine = Engine([Failing(), Fine()])
    engine.feed(Event("loss", 0))
    failed, fine = engine.results()
    assert (failed.verdict, failed.id) == (Verdict.NOT_EVALUATED, "C-THEIRS-001")
    assert "ZeroDivisionError: theirs" in failed.why
    assert fine.verdict is Verdict.PASS


def test_links_without_init_are_seams_too():
    assert {"terminal", "json"} <= set(plugins.names("brickprof.reports"))
    assert plugins.discover("brickprof.probes").plugins


def test_a_third_party_joins_a_seam_and_a_broken_one_is_a_note(tmp_path, monkeypatch):
    (tmp_path / "their_rule.py").write_text("RULE = 'theirs'\n")
    (tmp_path / "their_broken.py").write_text("raise ImportError('no such luck')\n")
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[brickprof.plugins]\nrules.theirs = their_rule\nrules.broken = their_broken\nreports.x = x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = plugins.discover("brickprof.rules")
    assert found.exports("RULE")["theirs"] == "theirs"
    assert len(found.notes) == 1
    assert "rules.broken" in found.notes[0]
    assert "no such luck" in found.notes[0]
    assert plugins.load("brickprof.rules", "theirs").RULE == "theirs"
    with pytest.raises(KeyError):
        plugins.load("brickprof.rules", "nobody")


def test_what_contracts_rest_on_is_known_and_goes_round_in_no_circle():
    from graphlib import TopologicalSorter

    library = registry.library()
    bases = {identity: set(contract.metadata.depends_on) for identity, contract in library.items()}
    assert set().union(*bases.values()) <= set(library)
    order = list(TopologicalSorter(bases).static_order())
    assert set(order) == set(library)
    assert order.index("C-CONFIG-001") < order.index("C-STEPSIZE-001") < order.index("C-LOSSSPIKE-001")
