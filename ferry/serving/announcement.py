"""Says what a model takes, how it is served, and with which command to try it."""

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `ferry serve` loads it while its server starts
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


def announcement(live: "LiveModel", base_url: str) -> str:
    spec, workers = live.spec, live.workers
    policy = ", adaptive" if spec.batch_policy == "adaptive" else ""
    devices = ", ".join(sorted({worker.device for worker in workers}))
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


def curl_line(live: "LiveModel", base_url: str) -> str:
    """Returns a command for a POSIX shell that sends the model one row."""
    curl = f"curl {base_url}/predictions/{live.spec.model_name}"
    takes = live.interface.get("input", {})
    kind, example = takes.get("kind", ""), live.interface.get("example")
    if kind in _FILES:
        return f"{curl} -T {_FILES[kind]}"
    if kind == "text":
        return f"{curl} -d {shlex.quote(example if isinstance(example, str) else 'some text')}"
    if kind == "form":
        fields = takes.get("schema", {}).get("properties", {})
        return " ".join([curl, *(_form_field(name, fields[name]) for name in fields)])
    if example is None and (inputs := live.interface.get("inputs", [])):
        rows = {str(tensor["name"]): _zeros(tensor) for tensor in inputs}
        example = rows if len(rows) > 1 else next(iter(rows.values()))
        if len(json.dumps(example)) > _MOST_CHARACTERS:
            files = (f"-F {shlex.quote(f'{name}=@{name}.npy')}" for name in rows)
            return f"{curl} {' '.join(files) if len(rows) > 1 else '-T row.npy'}"
    elif example is None:
        schema = takes.get("schema", {})
        example = _sample(schema) if kind == "json" and schema else [1.0, 2.0, 3.0, 4.0]
    return f"{curl} -d {shlex.quote(json.dumps(example))}"


def _taken(interface: Mapping[str, Any]) -> str:
    takes = interface.get("input", {})
    kind, type_name = takes.get("kind", ""), takes.get("type", "")
    if tensors := interface.get("inputs", []):
        return ", ".join(f"{it['name']} {it['datatype']} {list(it['shape'])}" for it in tensors)
    if kind == "any":
        return "JSON, an image, or bytes"
    return f"{kind} ({type_name})" if type_name not in ("", kind) else kind


def _form_field(name: str, schema: Mapping[str, Any]) -> str:
    is_file = "ferry-part" in json.dumps(schema)
    return f"-F {name}=@photo.jpg" if is_file else f"-F {shlex.quote(f'{name}={_sample(schema)}')}"


def _zeros(tensor: Mapping[str, Any]) -> Any:
    """Returns a row: nested lists. Axes of any length are short, but those of images."""
    axes = tensor["shape"][1:]
    unknown = 64 if len(axes) >= _AXES_OF_IMAGES else 1
    value: Any = "some text" if tensor["datatype"] == "BYTES" else 0
    for axis in reversed(axes):
        value = [value] * (axis if axis > 0 else unknown)
    return value


def _sample(schema: Mapping[str, Any]) -> Any:
    """Returns a small value that the schema allows."""
    known = [schema[key] for key in ("default", "const") if key in schema]
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
