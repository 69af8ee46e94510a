"""Reports for programs: CSV, Parquet, and the JSON that keeps to its schema."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import replace

import jsonschema
import pyarrow.parquet as pq
import pytest
from making import START
from test_report_formats import ALL_HOSTILE, SCHEMA, hostile, judged
from test_reports import UNSAFE, stuck_run

from brickprof.bricks import Brick, Kind
from brickprof.diagnosis import diagnose
from brickprof.records import Span
from brickprof.reports import contracts_csv, contracts_parquet, parquet
from brickprof.reports import csv as csv_report
from brickprof.reports import json as json_report
from brickprof.run import Run

# -- tables


def test_csv_has_a_row_for_each_finding():
    diagnosis, run = judged("several")
    rows = list(csv.DictReader(io.StringIO(csv_report.text(diagnosis, run))))
    assert [row["finding"] for row in rows] == ["F1", "F2", "F3"]
    assert (rows[1]["file"], rows[1]["line"], rows[0]["line"]) == ("lib/data.py", "77", "")
    assert rows[2]["whys"].startswith("What does the host read in a step? train.py:31 reads 23 numbers")
    assert rows[0]["run"] == "k3f9" and rows[0]["run_verdict"] == "FAIL" and float(rows[0]["confidence"]) > 0
    listed = list(csv.DictReader(io.StringIO(contracts_csv.text(diagnosis))))
    assert [row["contract"] for row in listed] == [each.id for each in diagnosis.contracts]
    assert Counter(row["verdict"] for row in listed) == Counter(each.verdict.value for each in diagnosis.contracts)


def test_csv_of_a_healthy_run_is_its_header():
    text = csv_report.text(*judged("zero"))
    assert text.count("\n") == 1 and text.startswith("run,name,run_verdict,steps,finding,contract,")


@pytest.mark.parametrize("name", ALL_HOSTILE)
def test_no_cell_is_a_formula(name):
    diagnosis, run = hostile(name)
    for text in (csv_report.text(diagnosis, run), contracts_csv.text(diagnosis)):
        rows = list(csv.reader(io.StringIO(text)))
        assert len({len(row) for row in rows}) == 1
        assert not any(cell.lstrip().startswith(("=", "+", "-", "@", "\t", "\r")) for row in rows for cell in row)
        assert not UNSAFE.search(text)


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@x", " =1", "\t=1", "＝1"])
def test_what_a_spreadsheet_would_compute_is_text(cell):
    assert csv_report.harmless(cell) == f"'{cell}"
    assert csv_report.harmless("a=1") == "a=1"


def table(module, diagnosis, run):
    return pq.read_table(io.BytesIO(module.DATA(diagnosis, run)))


def test_parquet_has_the_same_columns_with_and_without_findings():
    some, none = (table(parquet, *judged(name)) for name in ("several", "zero"))
    assert some.schema.equals(none.schema) and (some.num_rows, none.num_rows) == (3, 0)
    row = some.to_pylist()[1]
    diagnosis = judged("several")[0]
    assert row["file"] == "lib/data.py" and row["line"] == 77
    assert [why["question"] for why in row["whys"]] == [why.question for why in diagnosis.findings[1].whys]
    assert dict(row["coordinates"]) == diagnosis.findings[1].coordinates
    assert some.to_pylist()[0]["line"] is None
    contracts = table(contracts_parquet, *judged("several"))
    assert contracts.column("contract").to_pylist() == [each.id for each in diagnosis.contracts]


@pytest.mark.parametrize("name", ALL_HOSTILE)
def test_hostile_text_in_parquet(name):
    read = table(parquet, *hostile(name))
    assert read.num_rows == 3 and not UNSAFE.search("".join(read.column("symptom").to_pylist()))


# -- JSON


@pytest.mark.parametrize("name", ["zero", "one", "several", "nothing"])
def test_json_keeps_to_its_schema(name):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(json_report.text(judged(name)[0])), SCHEMA, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("name", ALL_HOSTILE)
def test_json_of_a_hostile_run_keeps_to_its_schema(name):
    diagnosis = hostile(name)[0]
    plain = tuple(replace(each, scope="local", nature="static") for each in diagnosis.findings)
    document = json.loads(json_report.text(replace(diagnosis, findings=plain)))
    jsonschema.validate(document, SCHEMA, jsonschema.Draft202012Validator)


def test_the_schema_describes_every_name_of_the_document():
    document, about = judged("several")[0].to_dict(), SCHEMA["$defs"]
    finding = document["findings"][0]
    for seen, described in (
        (document, SCHEMA), (finding, about["finding"]), (finding["whys"][0], about["why"]),
        (document["contracts"][0], about["contract"]),
    ):  # fmt: skip
        assert set(seen) == set(described["properties"])
    out = next(out for each in document["findings"] for out in each["ruled_out"])
    assert set(out) == set(about["ruled_out"]["properties"])


def test_the_schema_describes_the_course_of_a_run_and_where_its_time_went():
    brick = Brick(Kind.BLOCK, "head", "Net"), Brick(Kind.KERNEL, "gemm", "Net")
    spans = [
        Span(Brick(Kind.STEP, "step", "Net"), 3, START, START + 10_000_000, "step", 1, 0, device_ns=8_000_000),
        Span(brick[0], 3, START, START + 6_000_000, "forward", 2, 1, device_ns=6_000_000),
        Span(brick[1], 3, START, START + 2_000_000, "forward", 3, 2, device_ns=2_000_000),
    ]
    told = diagnose(Run.from_records([*stuck_run().records, *spans])).to_dict()
    facts, about = told["run"], SCHEMA["$defs"]
    described = about["run"]["properties"]
    assert {"curves", "layers", "bricks", "kernels", "step_budget", "lanes"} <= set(facts) <= set(described)
    for name in ("layers", "bricks", "kernels", "lanes"):
        assert set(facts[name][0]) == set(described[name]["items"]["properties"])
    assert set(facts["curves"]["loss"]) <= set(about["curve"]["properties"])
    jsonschema.validate(told, SCHEMA, jsonschema.Draft202012Validator)
    facts["curves"]["loss"]["cells"][0] = "very large"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(told, SCHEMA, jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 2), (("verdict",), "OK"), (("verdict",), "PASS"), (("findings", 0, "confidence"), 1.5),
        (("findings", 0, "severity"), "fatal"), (("findings", 0, "whys", 0, "evidence"), [1]),
        (("findings", 0, "first_step"), "3"), (("contracts", 0, "verdict"), None), (("run", "steps"), -1),
        (("findings", 0, "nature"), "odd"), (("contracts",), {}),
    ],
)  # fmt: skip
def test_the_schema_refuses_what_is_wrong(path, value):
    document = json.loads(json_report.text(judged("several")[0]))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA, jsonschema.Draft202012Validator)
