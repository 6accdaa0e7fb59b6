"""Compares the tables of docs/torchserve-compatibility.md with the code, row by row."""

import importlib
import itertools
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from ts.module_finder import LEFT_OUT

from batching.models.registration import ModelDefaults, spec_from_registration
from batching.models.spec import PARAMETERS, ArchiveInfo
from batching.settings.loading import BETTER, IGNORED, UNDERSTOOD
from batching.settings.settings import SETTINGS
from ferry.commands.torchserve import torchserve
from ingress.role import Role
from ingress.torchserve.openapi import api_document
from ingress.torchserve.routes import ROUTES

ROOT = Path(__file__).parents[4]
DOCUMENT = ROOT / "docs" / "torchserve-compatibility.md"
METRICS = ROOT / "tests" / "conformance" / "recordings" / "main" / "metrics.json"

VERDICTS = {"same", "better", "left out"}


def table(heading, *several):
    """Returns the rows under a heading as lists of cells, without backticks.

    Cells of the columns `several` may name several things, by comma: each has a row of its own.
    """
    section = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    rows = [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines[2:]
    ]
    return [
        [*cells]
        for row in rows
        for cells in itertools.product(
            *(cell.split(", ") if it in several else [cell] for it, cell in enumerate(row))
        )
    ]


def verdicts(heading, *several):
    """The first cell of each row, and what the row says of it."""
    table_rows = table(heading, *several)
    rows = {row[0]: row[1] for row in table_rows}
    assert set(rows.values()) <= VERDICTS
    assert len(rows) == len(table_rows)
    return rows


def there(rows):
    return {name for name, verdict in rows.items() if verdict != "left out"}


def left_out(rows):
    return {name for name, verdict in rows.items() if verdict == "left out"}


# --- routes


def test_routes_of_the_document_are_those_of_the_table():
    documented = sorted(row[:3] for row in table("Routes", 0, 1, 2) if row[3] != "left out")
    assert documented == sorted(
        [port, route.method, page_path(route.path)]
        for route in ROUTES
        for port in (["all"] if set(route.ports) == set(Role) else route.ports)
    )


def page_path(path):
    short = {"{model_name}": "M", "{model_version}": "V", "{job_id}": "J", "{tail}": "tail"}
    return re.sub(r"{\w+}", lambda match: short[match[0]], path)


# --- parameters


def test_parameters_are_those_of_the_document():
    # Given the parameters that the document names for a request, and those of the code
    rows = table("Parameters", 0, 1)
    assert {row[2] for row in rows} <= VERDICTS
    named = {
        (request.replace("/M", "/{model_name}"), parameter)
        for request, parameter, verdict, _ in rows
        if verdict != "left out"
    }
    known = {
        (f"{method.upper()} {path}", parameter["name"])
        for path, operations in api_document(list(Role))["paths"].items()
        for method, operation in operations.items()
        for parameter in operation["parameters"]
        if parameter["in"] == "query" and "{model_version}" not in path
    }

    # Then they are the same, save parameters of our own, which docs/configuration.md has
    assert named <= known
    assert known - named <= {("POST /models", one.rest) for one in PARAMETERS}


# --- configuration


def test_configuration_keys_are_those_of_the_document():
    # Given
    rows = verdicts("Configuration keys", 0)

    # Then the server understands the supported keys, and ignores those that are left out
    assert there(rows) == UNDERSTOOD - {it.key for it in SETTINGS if not it.is_torchserves}
    assert left_out(rows) == set(IGNORED)
    # and `ferry doctor` says of the others what the document says
    better = {row[0]: row[2] for row in table("Configuration keys") if row[1] == "better"}
    assert better == {key: text.replace("`", "") for key, text in BETTER.items()}


def spec_with(config):
    archive = ArchiveInfo("m.mar", "0" * 64, "m", "1.0", "h.py", "python", None, config)
    spec = spec_from_registration({}, archive, ModelDefaults())
    return {one.name: getattr(spec, one.name) for one in fields(spec) if one.name != "config"}


def test_model_config_keys_are_those_of_the_document():
    # When each example of the document is what model-config.yaml says
    rows = verdicts("model-config.yaml")
    changing = {text for text in rows if spec_with(yaml.safe_load(f"{{{text}}}")) != spec_with({})}

    # Then exactly the supported keys change the registration
    assert changing == there(rows)


def test_flags_are_those_of_the_document():
    # Given
    rows = verdicts("Command line", 0)
    options = [option for option in torchserve.params if "--help" not in option.opts]
    takes = {name: option for option in options for name in option.opts}

    # Then they are the same, and those that are left out say that they have no effect
    assert set(rows) == set(takes)
    without_effect = {name for name in rows if "No effect" in (takes[name].help or "")}
    assert without_effect == left_out(rows)


# --- handlers


@pytest.mark.parametrize(
    ("module", "names", "verdict"), [row[:3] for row in table("Handler imports", 0)]
)
def test_imports_of_handlers_are_those_of_the_document(module, names, verdict):
    # Then supported modules import, and others say that they are left out
    assert verdict in VERDICTS
    if verdict == "left out":
        with pytest.raises(ImportError, match="leaves out"):
            importlib.import_module(module)
    else:
        imported = importlib.import_module(module)
        assert [name for name in names.split(", ") if not hasattr(imported, name)] == []


def test_every_module_that_is_left_out_is_in_the_document():
    # Given
    documented = [row[0] for row in table("Handler imports", 0) if row[2] == "left out"]

    # Then each is named, or something in it
    assert LEFT_OUT
    for module in LEFT_OUT:
        assert any(f"{name}.".startswith(f"{module}.") for name in documented), module


# --- metrics


def test_metrics_of_the_document_are_the_recorded_ones():
    # Given the families of TorchServe, which the conformance tests compare with ours
    cases = json.loads(METRICS.read_text(encoding="utf-8"))["cases"]
    lines = cases["metrics-all"]["answers"][0]["body"]
    recorded = {tuple(line.split()[2:4]) for line in lines if line.startswith("# TYPE")}

    # Then the document has each of them
    assert {(name, kind) for name, kind, _, _ in table("Metrics", 0)} == recorded
    assert {row[2] for row in table("Metrics")} <= VERDICTS
