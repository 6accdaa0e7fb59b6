"""Says what a model takes, how it is served, and with which command to try it."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from ferry.serving.live_models import LiveModel

# Kind -> a file to send; the handler of a TorchServe archive says none.
_FILES = {"image": "photo.jpg", "bytes": "file", "": "file"}
_SAMPLES: Mapping[str, Any] = {
    "string": "some text",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "null": None,
}
_MOST_CHARACTERS = 200
_AXES_OF_IMAGES = 3


def announcement(live: LiveModel, base_url: str) -> str:
    """Returns the lines about one model, without a newline at the end."""
    spec, workers = live.spec, live.workers
    policy = ", adaptive" if spec.batch_policy == "adaptive" else ""
    devices = ", ".join(sorted({one.device for one in workers}))
    facts = {
        "takes": _taken(live.interface),
        "batches": f"up to {spec.batch_size}, at most {spec.max_batch_delay_ms} ms{policy}",
        "workers": f"{len(workers)} on {devices}",
        "try": curl_line(live, base_url),
        "page": f"{base_url}/",
    }
    title = f"{spec.model_name} {spec.model_version}"
    if summary := live.interface.get("summary"):
        title += f": {summary}"
    return "\n".join([title, *(f"  {name:<9}{fact}" for name, fact in facts.items() if fact)])


def curl_line(live: LiveModel, base_url: str) -> str:
    """Returns a command for a POSIX shell that sends the model one row."""
    url = f"{base_url}/predictions/{live.spec.model_name}"
    takes = live.interface.get("input", {})
    kind, example = takes.get("kind", ""), live.interface.get("example")
    if kind in _FILES:
        return f"curl {url} -T {_FILES[kind]}"
    if kind == "text":
        return f"curl {url} -d {shlex.quote(example if isinstance(example, str) else 'some text')}"
    if kind == "form":
        fields = takes.get("schema", {}).get("properties", {})
        return " ".join([f"curl {url}", *(_form_field(name, fields[name]) for name in fields)])
    if example is None and (inputs := live.interface.get("inputs", [])):
        return _tensor_line(url, {str(one["name"]): _zeros(one) for one in inputs})
    if example is None:
        schema = takes.get("schema", {})
        example = _sample(schema) if kind == "json" and schema else [1.0, 2.0, 3.0, 4.0]
    return f"curl {url} -d {shlex.quote(json.dumps(example))}"


def _taken(interface: Mapping[str, Any]) -> str:
    takes = interface.get("input", {})
    kind, type_name = takes.get("kind", ""), takes.get("type", "")
    tensors = [
        f"{one['name']} {one['datatype']} {list(one['shape'])}"
        for one in interface.get("inputs", [])
    ]
    if tensors:
        return ", ".join(tensors)
    if kind == "any":
        return "JSON, an image, or bytes"
    return f"{kind} ({type_name})" if type_name not in ("", kind) else kind


def _form_field(name: str, schema: Mapping[str, Any]) -> str:
    is_file = "ferry-part" in json.dumps(schema)
    return f"-F {name}=@photo.jpg" if is_file else f"-F {shlex.quote(f'{name}={_sample(schema)}')}"


def _tensor_line(url: str, rows: Mapping[str, Any]) -> str:
    """Returns a command that sends these arrays: as JSON, or as files if that would be long."""
    text = json.dumps(rows if len(rows) > 1 else next(iter(rows.values())))
    if len(text) <= _MOST_CHARACTERS:
        return f"curl {url} -d {shlex.quote(text)}"
    files = {f"row{number}.npy": name for number, name in enumerate(rows)}
    saved = [f'n.save("{file}", n.zeros({_shape(rows[name])}))' for file, name in files.items()]
    program = shlex.quote(f"import numpy as n; {'; '.join(saved)}")
    fields = " ".join(f"-F {shlex.quote(f'{name}=@{file}')}" for file, name in files.items())
    return f"python -c {program} && curl {url} {fields if len(rows) > 1 else '-T row0.npy'}"


def _zeros(tensor: Mapping[str, Any]) -> Any:
    """Returns a row: nested lists. Axes of any length are short, but those of images."""
    axes = tensor["shape"][1:]
    unknown = 64 if len(axes) >= _AXES_OF_IMAGES else 1
    value: Any = "some text" if tensor["datatype"] == "BYTES" else 0
    for axis in reversed(axes):
        value = [value] * (axis if axis > 0 else unknown)
    return value


def _shape(value: Any) -> list[int]:
    return [len(value), *_shape(value[0])] if isinstance(value, list) and value else []


def _sample(schema: Mapping[str, Any]) -> Any:
    """Returns a small value that the schema allows."""
    known = [schema[word] for word in ("default", "const") if word in schema]
    if known or schema.get("enum"):
        return [*known, *schema.get("enum", [])][0]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return _sample(options[0])
    kind = schema.get("type")
    if kind == "object":
        fields, required = schema.get("properties", {}), schema.get("required", [])
        return {name: _sample(fields[name]) for name in fields if name in required}
    if kind == "array":
        return [_sample(schema.get("items") or {})]
    return _SAMPLES.get(str(kind), "some text")
