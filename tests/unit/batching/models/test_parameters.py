"""Each model parameter is what its declaration in ModelSpec says, wherever it is named."""

from pathlib import Path

import pytest

from batching.errors import BadRequest
from batching.models.entry import ModelEntry
from batching.models.registration import ModelDefaults, spec_from_registration
from batching.models.spec import PARAMETERS, ArchiveInfo
from batching.settings.snapshots import CHANGE, read_snapshot, write_snapshot

DOCUMENT = Path(__file__).parents[4] / "docs" / "configuration.md"
# Neither is one without the other.
PAIR = {"minWorkers": 9, "maxWorkers": 9}
# Other values that need company.
COMPANY = {"latency_slo_ms": {"batch_policy": "adaptive", "batchPolicy": "adaptive"}}


def named(parameters):
    return [pytest.param(one, id=one.name) for one in parameters]


def other_value(one):
    """A value that is not the default."""
    if one.choices:
        return next(choice for choice in one.choices if choice != one.default)
    return {int: 9, bool: not one.default, str: "other", list: [9]}[one.kind]


def register(parameters, config):
    archive = ArchiveInfo("m.mar", "", "m", "1.0", "h.py", "python", None, config)
    return spec_from_registration(parameters, archive, ModelDefaults())


def row_of(one):
    """The line that the document has for a parameter."""
    rest = f"`{one.rest}`" if one.rest else ""
    word = f"`{one.word}`"
    default = "" if one.default in ("", ()) else str(one.kind(one.default)).lower()
    wins = ("file" if one.is_archives else "request") if rest and word else ""
    return f"| {rest} | {word} | {f'{default} {one.unit}'.strip()} | {wins} | {one.doc} |"


def test_document_has_a_row_for_each_parameter():
    # Given
    text = DOCUMENT.read_text(encoding="utf-8").split("\n## Model parameters\n")[1]
    rows = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("|")][2:]
    # When
    missing = {one.name: row_of(one) for one in PARAMETERS if row_of(one) not in rows}
    # Then
    assert missing == {}
    assert len(rows) == len(PARAMETERS)


@pytest.mark.parametrize("one", named(one for one in PARAMETERS if one.rest))
def test_parameter_of_a_request_counts_and_outlives_a_snapshot(one, tmp_path):
    # Given
    asked = {one.rest: str(other_value(one)), **COMPANY.get(one.name, {})}
    # When
    spec = register(asked, {})
    path = write_snapshot(tmp_path, CHANGE, {}, {"m": ModelEntry("1.0", {"1.0": spec})})
    [saved] = read_snapshot(path)
    # Then
    assert getattr(spec, one.name) == other_value(one)
    assert register(saved.parameters, {}) == spec


@pytest.mark.parametrize("one", named(PARAMETERS))
def test_parameter_in_a_file_counts_if_its_type_is_right(one):
    # Given
    value = other_value(one)
    company = PAIR if one.word in PAIR else COMPANY.get(one.name, {})
    # When
    spec = register({}, {one.word: value, **company})
    others = [
        other
        for other in ("8", 1, True, [0, "1"], None)
        if one.kind is list or type(other) is not one.kind
    ]
    wrong = [register({}, {one.word: other}) for other in others]
    # Then
    assert getattr(spec, one.name) == (tuple(value) if one.kind is list else value)
    assert {getattr(spec, one.name) for spec in wrong} == {one.default}


@pytest.mark.parametrize("one", named(one for one in PARAMETERS if one.lowest >= 0))
def test_parameter_below_its_range_is_refused(one):
    below = {one.rest: one.lowest - 1} if one.rest else {}
    with pytest.raises(BadRequest, match=one.refusal or f"^{one.rest} must be {one.lowest} or"):
        register(below, {} if below else {one.word: one.lowest - 1})
