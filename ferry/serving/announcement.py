"""Says what a model takes, how it is served, and with which command to try it."""

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `ferry serve` loads it while its server starts
    from ferry.serving.live_models import LiveModel

# Kind -> a file to send; the handler of a TorchServe archive says none.
_FILES = {"image": "photo.jpg", "bytes": "file", "": "file"}
<<<<<<< HEAD
_TEXT = "some text"
_SAMPLES = {"integer": 1, "number": 1.0, "boolean": True, "null": None}
_MOST_ZEROS = 4096
=======
_SAMPLES: Mapping[str, Any] = {
    "string": "some text",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "null": None,
}
_MOST_CHARACTERS = 200
_AXES_OF_IMAGES = 3
>>>>>>> core


def announcement(live: "LiveModel", base_url: str) -> str:
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
    summary = f": {live.interface['summary']}" if live.interface.get("summary") else ""
    title = f"{spec.model_name} {spec.model_version}{summary}"
    return "\n".join([title, *(f"  {name:<9}{fact}" for name, fact in facts.items() if fact)])


def curl_line(live: "LiveModel", base_url: str) -> str:
    """Returns a command for a POSIX shell that sends the model one row."""
    command = f"curl {base_url}/predictions/{live.spec.model_name}"
    takes, example = live.interface.get("input", {}), live.interface.get("example")
    kind, schema = takes.get("kind", ""), takes.get("schema", {})
    if kind in _FILES:
        return f"{command} -T {_FILES[kind]}"
    if kind == "form":
<<<<<<< HEAD
        fields = schema.get("properties", {}).items()
        return " ".join([command, *(f"-F {_form_field(name, one)}" for name, one in fields)])
    if kind == "text":
        body = example if isinstance(example, str) else _TEXT
    else:
        body = json.dumps(_example(live.interface) if example is None else example)
    return f"{command} -d {shlex.quote(body)}"
=======
        fields = takes.get("schema", {}).get("properties", {})
        return " ".join([f"curl {url}", *(_form_field(name, fields[name]) for name in fields)])
    if example is None and (inputs := live.interface.get("inputs", [])):
        return _tensor_line(url, {str(one["name"]): _zeros(one) for one in inputs})
    if example is None:
        schema = takes.get("schema", {})
        example = _sample(schema) if kind == "json" and schema else [1.0, 2.0, 3.0, 4.0]
    return f"curl {url} -d {shlex.quote(json.dumps(example))}"
>>>>>>> core


def _taken(interface: Mapping[str, Any]) -> str:
    takes = interface.get("input", {})
    kind, type_name = takes.get("kind", ""), takes.get("type", "")
    if tensors := interface.get("inputs"):
        return ", ".join(f"{one['name']} {one['datatype']} {one['shape']}" for one in tensors)
    if kind == "any":
        return "JSON, an image, or bytes"
    return f"{kind} ({type_name})" if type_name not in ("", kind) else kind


def _form_field(name: str, schema: Mapping[str, Any]) -> str:
    if "ferry-part" in json.dumps(schema):
        return f"{name}=@photo.jpg"
    return shlex.quote(f"{name}={_sample(schema)}")


<<<<<<< HEAD
def _example(interface: Mapping[str, Any]) -> Any:
    """Returns a value of the schema, of the tensors, or one that suits many models."""
    tensors = {one["name"]: _zeros(one["shape"][1:]) for one in interface.get("inputs", [])}
    if tensors:
        return tensors if len(tensors) > 1 else next(iter(tensors.values()))
    takes = interface["input"]
    has_schema = takes.get("kind") == "json" and takes.get("schema")
    return _sample(takes["schema"]) if has_schema else [1.0, 2.0, 3.0, 4.0]


def _zeros(shape: list[int]) -> Any:
    """Returns zeros; an axis of any length (-1) has one."""
    return [_zeros(shape[1:])] * min(max(shape[0], 1), _MOST_ZEROS) if shape else 0
=======
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
>>>>>>> core


def _sample(schema: Mapping[str, Any]) -> Any:
    """Returns a small value that the schema allows."""
    known = [schema[word] for word in ("default", "const") if word in schema]
    if values := known or schema.get("enum"):
        return values[0]
    if options := schema.get("anyOf"):
        return _sample(options[0])
    if schema.get("type") == "object":
        fields = schema.get("properties", {})
        return {name: _sample(fields[name]) for name in schema.get("required", [])}
    if schema.get("type") == "array":
        return [_sample(schema.get("items") or {})]
    return _SAMPLES.get(schema.get("type", ""), _TEXT)
