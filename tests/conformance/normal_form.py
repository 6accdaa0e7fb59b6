"""Turns an answer into data that is the same in each run, by named rules."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.conformance.wire import Answer

# Name of the rule, the pattern that it finds in a body, and what it leaves there.
_TEXT_RULES = (
    ("request-id", r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", "<uuid>"),
    ("start-time", r'("startTime": )"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"', r'\1"<time>"'),
    ("memory", r'("memoryUsage": )\d+', r"\g<1>0"),
    ("pid", r'("pid": )[1-9]\d*', r"\g<1>1"),
    ("worker-id", r'("id": )"[^"]+"(?=,\s+"startTime")', r'\1"<worker>"'),
    ("server-version", r'("name": "[Tt]orch\w+",\s+"version": )"[^"]+"', r'\1"<server version>"'),
    ("node", r'("node": )"[^"]+"', r'\1"<node>"'),
)
# Headers that differ from answer to answer or belong to the HTTP library.
_UNRECORDED = ("date",)


def normal_form(answer: Answer, places: Mapping[str, str], outline: str = "") -> dict[str, Any]:
    """Returns the answer as JSON, with the names of the rules that changed it.

    Args:
        answer: as received.
        places: values that become `{name}` again in the body.
        outline: `openapi` or `metrics` for a document of which only the outline is kept.
    """
    body = answer.body
    rules = []
    if outline and answer.status < 300:
        text = _OUTLINES[outline](body.decode())
        rules.append(f"outline-{outline}")
    else:
        text = None if _is_binary(body) else body.decode()
    if text is not None:
        text, used = _apply_rules(text, places)
        rules += used
    record: dict[str, Any] = {
        "status": answer.status,
        "phrase": answer.phrase,
        "headers": dict(sorted(_headers(answer))),
        "is_closed": answer.is_closed,
    }
    if text is None:
        record["base64"] = base64.b64encode(body).decode()
    else:
        record["body"] = text.split("\n")
    return record | ({"rules": rules} if rules else {})


def _is_binary(body: bytes) -> bool:
    try:
        return "\0" in body.decode()
    except UnicodeDecodeError:
        return True


def _apply_rules(text: str, places: Mapping[str, str]) -> tuple[str, list[str]]:
    used = []
    for name, value in places.items():
        if value in text:
            text = text.replace(value, f"{{{name}}}")
            used.append(name)
    for name, pattern, left in _TEXT_RULES:
        changed = re.sub(pattern, left, text)
        if changed != text:
            used.append(name)
        text = changed
    return text, used


def _headers(answer: Answer) -> Iterator[tuple[str, str]]:
    for name, value in answer.headers.items():
        if name == "content-length" and value == str(len(answer.body)):
            yield name, "<length of the body>"
        elif name == "x-request-id":
            yield name, re.sub(_TEXT_RULES[0][1], "<uuid>", value)
        elif name not in _UNRECORDED:
            yield name, value


def _openapi_outline(text: str) -> str:
    document = json.loads(text)
    version = document["info"]["version"]
    outline = {
        "openapi": document["openapi"],
        "title": document["info"]["title"],
        "version": "<server version>" if version != "1.0.0" else version,
        "paths": {
            f"{method} {path}": {_parameter(one): "" for one in operation.get("parameters", ())}
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        },
    }
    return json.dumps(outline, indent=2) + "\n"


def _parameter(parameter: Mapping[str, Any]) -> str:
    return f"{parameter['in']} {parameter['name']}"


def _metrics_outline(text: str) -> str:
    """Sorts families by name, each with its samples; leaves host names and amounts out."""
    families: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split()[2]
        families.setdefault(name, []).append(_sample(line))
    lines = [line for name in sorted(families) for line in _sorted_family(families[name])]
    return "\n".join([*lines, ""])


def _sorted_family(lines: list[str]) -> list[str]:
    head = [line for line in lines if line.startswith("#")]
    return head + sorted(set(lines).difference(head))


def _sample(line: str) -> str:
    if line.startswith("#"):
        return line
    line = re.sub(r'((?:H|h)ostname)="[^"]*"', r'\1="<host>"', line)
    line = re.sub(r"W-([0-9a-f]{12}-\d+(@[0-9a-f]{12})?|\d+)-", "W-<worker>-", line)
    is_count = line.startswith("ts_inference_requests_total")
    return line if is_count else re.sub(r" \d+\.\d+(?:E-?\d+)?$", " <float>", line)


_OUTLINES = {"openapi": _openapi_outline, "metrics": _metrics_outline}
