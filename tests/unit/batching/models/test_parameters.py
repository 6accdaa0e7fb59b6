"""Each model parameter is what its declaration in ModelSpec says, wherever it is named."""

from pathlib import Path

import pytest

from batching.errors import BadRequest
from batching.models.entry import ModelEntry
from batching.models.registration import ModelDefaults, spec_from_registration
from batching.models.spec import PARAMETERS, ArchiveInfo
from batching.settings.settings import Settings
from batching.settings.snapshots import read_snapshot, write_snapshot

DOCUMENT = Path(__file__).parents[4] / "docs" / "configuration.md"
# Values that need company: neither of the pair is one without the other.
PAIR = {"minWorkers": 9, "maxWorkers": 9}
COMPANY = {"latency_slo_ms": {"batch_policy": "adaptive", "batchPolicy": "adaptive"}}


def of_each(parameters):
    return pytest.mark.parametrize("it", [pytest.param(it, id=it.name) for it in parameters])


def other_value(it):
    """A value that is not the default."""
    if it.choices:
        return next(choice for choice in it.choices if choice != it.default)
    return {int: 9, str: "other", list: [9]}[it.kind]


def register(parameters, config):
    archive = ArchiveInfo("m.mar", "", "m", "1.0", "h.py", "python", None, config)
    return spec_from_registration(parameters, archive, ModelDefaults())


def row_of(it):
    """The line that the document has for a parameter."""
    rest = f"`{it.rest}`" if it.rest else ""
    default = "" if it.default in ("", ()) else str(it.kind(it.default)).lower()
    wins = ("file" if it.is_archives else "request") if rest else ""
    return f"| {rest} | `{it.word}` | {f'{default} {it.unit}'.strip()} | {wins} | {it.doc} |"


def test_document_has_a_row_for_each_parameter():
    text = DOCUMENT.read_text(encoding="utf-8").split("\n## Model parameters\n")[1]
    rows = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("|")][2:]
    assert sorted(rows) == sorted(map(row_of, PARAMETERS))


@of_each(it for it in PARAMETERS if it.rest)
def test_parameter_of_a_request_counts_and_outlives_a_snapshot(it, tmp_path):
    # Given
    asked = {it.rest: str(other_value(it)), **COMPANY.get(it.name, {})}
    # When
    spec = register(asked, {})
    path = write_snapshot(tmp_path, Settings(), {"m": ModelEntry("1.0", {"1.0": spec})})
    [saved] = read_snapshot(path)
    # Then
    assert getattr(spec, it.name) == other_value(it)
    assert register(saved.parameters, {}) == spec


@of_each(PARAMETERS)
def test_parameter_in_a_file_counts_if_its_type_is_right(it):
    # Given
    value = other_value(it)
    company = PAIR if it.word in PAIR else COMPANY.get(it.name, {})
    # When
    spec = register({}, {it.word: value, **company})
    others = [
        other
        for other in ("8", 1, True, [0, "1"], None)
        if it.kind is list or type(other) is not it.kind
    ]
    wrong = [register({}, {it.word: other}) for other in others]
    # Then
    assert getattr(spec, it.name) == (tuple(value) if it.kind is list else value)
    assert {getattr(spec, it.name) for spec in wrong} == {it.default}


@of_each(it for it in PARAMETERS if it.lowest >= 0)
def test_parameter_below_its_range_is_refused(it):
    below = {it.rest: it.lowest - 1} if it.rest else {}
    with pytest.raises(BadRequest, match=f"^{it.rest or it.word} must be {it.lowest} or more"):
        register(below, {} if below else {it.word: it.lowest - 1})
