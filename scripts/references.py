"""Writes docs/reference/ from what the code says of itself: `python -m scripts.references`."""

import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

import ferry
import ferry_client
from batching.settings.settings import ENV_PREFIX, SETTINGS, Setting
from ferry.main import COMMANDS, main
from ferry.options import ServerCommand
from ingress.role import Role
from ingress.torchserve.openapi import api_document, operations_of
from scripts.docstrings import Described, described
from workers.machine import ts_folder

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
_MARK = (
    "<!-- Written by `python -m scripts.references`: change what it reads, and run it again. -->"
)


def written() -> dict[str, str]:
    """Returns the pages: file name -> text."""
    pages = {
        "settings.md": _settings(),
        "command-line.md": _command_line(),
        "http.md": _http(),
        "context.md": _context(),
        "model.md": _model(),
        "client.md": _client(),
    }
    # The mark comes second: mkdocs takes a title only from the first line.
    return {
        name: "\n\n".join([title, _MARK, *blocks]) + "\n"
        for name, (title, *blocks) in pages.items()
    }


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(headings), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: object) -> str:
    return f"`{text}`" if text not in (None, "") else ""


def _sentence(text: str) -> str:
    """Adds a full stop, and a capital unless the first word is a value."""
    word = text.partition(" ")[0]
    text = text[0].upper() + text[1:] if word.isalpha() and word.islower() else text
    return text if text.endswith(".") else f"{text}."


# --- settings

_TYPES: Mapping[type, str] = {int: "whole number", float: "number", str: "text", Path: "path"}
# Units that stay in the key.
_UNITS_OF_KEYS = {"token_expiration_min": "minutes", "max_image_pixels": "pixels"}
_MOST_USED = "Most used"


def _settings() -> list[str]:
    sections: dict[str, list[Setting]] = {_MOST_USED: []}
    for it in SETTINGS:
        sections.setdefault(_MOST_USED if it.is_common else it.section, []).append(it)
    blocks = [
        "# Settings",
        "Each setting is a flag of `ferry up`, `ferry ingress` and `ferry node`, a variable of the "
        f"environment, and a key of the file `config.properties`: `queue_timeout_s` is "
        f"`--queue-timeout-s`, `{ENV_PREFIX}QUEUE_TIMEOUT_S` and, without its unit, the key "
        "`queue_timeout`. A star marks those that TorchServe has. A switch is `true` or `false`; "
        "its flag is `--access-log` or `--no-access-log`. [Configuration](../configuration.md) "
        "says which of several values counts.",
    ]
    for heading, settings in sections.items():
        blocks.append(f"## {heading}")
        headings = ("name", "type", "default", "unit", "meaning")
        blocks.append(_table(headings, map(_setting_row, settings)))
    return blocks


def _setting_row(it: Setting) -> list[str]:
    meaning = [_sentence(it.doc)]
    if it.key not in (it.name, it.name.rpartition("_")[0]):
        meaning.append(f"Its key is `{it.key}`.")
    if it.flag:
        meaning.append(f"Also the flag `{it.flag}`.")
    if it.variable:
        meaning.append(f"Also the variable `{it.variable}`.")
    default = str(it.default).lower() if it.kind is bool else it.default
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return [
        _code(it.name) + (" *" if it.is_torchserves else ""),
        _setting_type(it),
        _code(default),
        it.unit or _UNITS_OF_KEYS.get(it.name, ""),
        " ".join(meaning),
    ]


def _setting_type(it: Setting) -> str:
    if it.choices:
        return ", ".join(map(_code, filter(None, it.choices)))
    if it.kind is bool:
        return "switch"
    return _TYPES[it.kind] + (f", {it.lowest:g} or more" if it.lowest else "")


# --- command line


def _command_line() -> list[str]:
    blocks = [
        "# Command line",
        "What `ferry COMMAND --help` says of every command. Files and batches have a command of "
        "their own, `ferry-bulk`: [bulk.md](../bulk.md).",
    ]
    for command in COMMANDS:
        context = click.Context(main, info_name="ferry")
        blocks += _command(main.get_command(context, command), command, context)
    return blocks


def _command(command: Any, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    path = context.command_path
    if isinstance(command, click.Group):
        for sub_name in command.list_commands(context):
            yield from _command(command.get_command(context, sub_name), sub_name, context)
        return
    yield f"## {path}"
    yield "\n".join(["```text", " ".join([path, *command.collect_usage_pieces(context)]), "```"])
    yield from _paragraphs(command.help or "")
    settings = {it.name for it in SETTINGS} if isinstance(command, ServerCommand) else set()
    if settings:
        yield "Every [setting](settings.md) is an option, and these are, too:"
    options = [it for it in command.params if isinstance(it, click.Option)]
    records = [it.get_help_record(context) for it in options if it.name not in settings]
    if rows := [(_code(record[0]), record[1]) for record in records if record]:
        yield _table(("option", "meaning"), rows)


def _paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of a command's help; after click's mark, lines stay as they are."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            yield "\n".join(["```text", *paragraph.splitlines()[1:], "```"])
        else:
            yield " ".join(paragraph.split())


# --- HTTP

_PORTS: Mapping[Role, str] = {
    Role.INFERENCE: "Predictions and their jobs: port 8080, `inference_address`.",
    Role.MANAGEMENT: "Models, nodes and all jobs: port 8081, `management_address`. "
    "The paths of one job, above, are here as well.",
    Role.METRICS: "Prometheus: port 8082, `metrics_address`.",
}


def _http() -> list[str]:
    blocks = [
        "# HTTP",
        "What the server's own OpenAPI document says: `GET /api-description` on each port. Further "
        "paths, among them TorchServe's older ones: "
        "[Routes](../torchserve-compatibility.md#routes). How a body becomes an input: "
        "[python-models.md](../python-models.md#what-comes-in).",
    ]
    seen: set[str] = set()
    for role, about in _PORTS.items():
        blocks += [f"## {str(role.value).capitalize()}", about]
        document = api_document([role])
        for path, method, operation in operations_of(document["paths"]):
            if operation["operationId"] not in seen:
                seen.add(operation["operationId"])
                blocks += _operation(path, method, operation)
    blocks += ["## Objects"]
    for name, schema in api_document(list(Role))["components"]["schemas"].items():
        rows = _properties(schema)
        blocks += [f"### {name}", _table(("field", "type"), rows)]
    return blocks


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {method.upper()} {path}"
    yield f"{operation['summary']}."
    if parameters := operation["parameters"]:
        yield _table(("parameter", "in", "type", "meaning"), map(_parameter_row, parameters))
    answers = [
        (
            "other" if status == "default" else status,
            ", ".join(_schema_type(it["schema"]) for it in answer.get("content", {}).values()),
            _sentence(answer["description"]),
        )
        for status, answer in operation["responses"].items()
    ]
    yield _table(("status", "body", "answer"), answers)


def _parameter_row(parameter: Mapping[str, Any]) -> list[str]:
    about = [_sentence(parameter["description"])] if "description" in parameter else []
    if parameter["required"] and parameter["in"] != "path":
        about.append("Required.")
    kind = _schema_type(parameter["schema"])
    return [_code(parameter["name"]), parameter["in"], kind, " ".join(about)]


def _schema_type(schema: Mapping[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("enum"):
        return ", ".join(map(_code, choices))
    if schema["type"] == "array":
        return f"list of {_schema_type(schema['items'])}"
    fields = ", ".join(map(_code, schema.get("properties", ())))
    return f"object: {fields}" if fields else str(schema.get("format", schema["type"]))


def _properties(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, inner in schema["properties"].items():
        if "properties" in inner:
            yield from _properties(inner, f"{prefix}{name}.")
        else:
            yield _code(prefix + name), _schema_type(inner)


# --- Python

# What has no docstring, as its name says it, and what is set where it is made.
_CONTEXT = {
    "model_name": "The model's name.",
    "manifest": "The archive's manifest.",
    "model_yaml_config": "The archive's `model-config.yaml`; empty without one.",
    "request_ids": "The ids of the batch's requests, by row.",
    "metrics": "Takes the handler's measurements: below.",
    "request_processor": "One object for each row, which has its headers: below.",
    "get_request_id": "Returns the id of a row's request.",
    "get_all_request_header": "Returns all headers of a row's request.",
    "get_sequence_id": "Returns the header `ts_request_sequence_id` of a row's request.",
    "set_response_content_type": "Sets the content type of a row's answer.",
    "get_response_content_type": "Returns what has been set.",
    "set_response_header": "Sets a header of a row's answer.",
    "get_response_headers": "Returns what has been set.",
    "get_response_status": "Returns status and phrase of a row's answer.",
    "set_all_response_status": "Sets the status of all answers of the batch.",
}
_PROCESSOR = {
    "get_request_property": "Returns a header of the request.",
    "get_request_properties": "Returns all headers of the request.",
    "report_status": "Sets the status of the answer.",
    "get_response_status_code": "Returns what has been set; else 200.",
    "get_response_status_phrase": "Returns what has been set.",
    "add_response_property": "Sets a header of the answer.",
    "get_response_headers": "Returns what has been set.",
    "get_response_header": "Returns what has been set under this name.",
}
_METRICS = {
    "request_ids": "As in the context.",
    "model_name": "As in the context.",
    "cache": "The metrics, by name and type.",
    "get_metric": "Returns a metric that is there; raises `MetricsCacheKeyError` without one.",
    "add_counter": "Adds to a counter.",
    "add_time": "Records a time; `unit` is `ms` or `s`.",
    "add_size": "Records a size; `unit` is `MB`, `kB`, `GB` or `B`.",
    "add_percent": "Records a share in percent.",
    "add_error": "Counts an error.",
}
# Of the context, what the worker itself needs.
SERVERS_OWN = frozenset(
    {"begin_batch", "cl_socket", "has_processors", "header_key_sequence_end"}
    | {"header_key_sequence_id", "header_key_sequence_start", "keep_progress", "own_metrics"}
    | {"send_pieces", "stopping_criteria"}
)


def _context() -> list[str]:
    if str(ts_folder()) not in sys.path:
        sys.path.append(str(ts_folder()))
    context = importlib.import_module("ts.context")
    metrics = importlib.import_module("ts.metrics")
    properties = context.Context("", "", None, 1, None, "").system_properties
    words = {**_CONTEXT, "system_properties": f"A dict: {', '.join(map(_code, properties))}."}
    return [
        "# What a handler finds in `context`",
        "The object that `initialize` and `handle` are given, which lives as long as its worker. "
        "`idx` is the row in the batch, from 0. How to use it: [handlers.md](../handlers.md).",
        *_members(described(context.Context), "## The context", words),
        *_members(described(context.RequestProcessor), "## `request_processor[idx]`", _PROCESSOR),
        *_members(described(metrics.MetricsStore), "## `metrics`", _METRICS),
    ]


def _members(it: Described, heading: str, words: Mapping[str, str]) -> Iterator[str]:
    yield heading
    members = [one for one in it.members if one.name not in SERVERS_OWN]
    yield "\n".join(line for one in members for line in one.as_item(words.get(one.name, "")))


def _model() -> list[str]:
    blocks = [
        "# `ferry.Model`",
        "What a model in Python may use: `import ferry`. How bodies become rows, and outputs "
        "answers: [python-models.md](../python-models.md).",
    ]
    names = sorted(ferry.__all__, key=lambda name: (name != "Model", name.lower()))
    for name in names:
        blocks += described(getattr(ferry, name)).as_section(f"ferry.{name}")
    return blocks


def _client() -> list[str]:
    blocks = [
        "# The Python client",
        "What `ferry_client` has; with the server all of it is in `ferry`, too: `ferry.Client`. "
        "With examples: [client.md](../client.md).",
    ]
    first = ("Client", "Job", "AsyncClient", "AsyncJob", "Prediction")
    names = [*first, *(name for name in ferry_client.__all__ if name not in first)]
    for name in names:
        blocks += described(getattr(ferry_client, name), names).as_section(name)
    calls = importlib.import_module("ferry_client.calls")
    return [*blocks, *described(calls.Options).as_section("Options")]


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for file_name, page in written().items():
        (REFERENCE / file_name).write_text(page, encoding="utf-8")
