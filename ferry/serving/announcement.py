"""Says what a model takes, how it is served, and with which command to try it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from batching.models.spec import ModelSpec
from batching.models.statuses import WorkerStatus

# Kind -> a file to send; a TorchServe archive's handler has no kind.
_FILES = {"image": "photo.jpg", "bytes": "file", "": "file"}
_SAMPLES: Mapping[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "null": None}
_MOST_CHARACTERS = 200
_AXES_OF_IMAGES = 3


def announcement(spec: ModelSpec, workers: Sequence[WorkerStatus], base_url: str) -> str:
    policy = ", adaptive" if spec.batch_policy == "adaptive" else ""
    devices = ", ".join(sorted({worker.device for worker in workers}))
    interface = next((worker.interface for worker in workers), {})
    takes, tensors = interface.get("input", {}), interface.get("inputs", [])
    kind, type_name = takes.get("kind", ""), takes.get("type", "")
    taken = f"{kind} ({type_name})" if type_name not in ("", kind) else kind
    if tensors:
        taken = ", ".join(f"{it['name']} {it['datatype']} {list(it['shape'])}" for it in tensors)
    elif kind == "any":
        taken = "JSON, an image, or bytes"
    facts = {
        "takes": taken,
        "batches": f"up to {spec.batch_size}, at most {spec.max_batch_delay_ms} ms{policy}",
        "workers": f"{len(workers)} on {devices}",
        "try": curl_line(f"{base_url}/predictions/{spec.model_name}", interface),
        "page": f"{base_url}/",
    }
    title = f"{spec.model_name} {spec.model_version}"
    if summary := interface.get("summary"):
        title += f": {summary}"
    return "\n".join([title, *(f"  {name:<9}{fact}" for name, fact in facts.items() if fact)])


def curl_line(url: str, interface: Mapping[str, Any]) -> str:
    """Returns a command for a POSIX shell that sends the model one row."""
    takes, tensors = interface.get("input", {}), interface.get("inputs", [])
    kind, schema = takes.get("kind", ""), takes.get("schema", {})
    example = interface.get("example")
    if kind in _FILES:
        arguments = ["-T", _FILES[kind]]
    elif kind == "text":
        arguments = ["-d", example if isinstance(example, str) else "some text"]
    elif kind == "form":
        arguments = []
        for name, field in schema.get("properties", {}).items():
            is_file = "ferry-part" in json.dumps(field)
            arguments += ["-F", f"{name}=@photo.jpg" if is_file else f"{name}={_sample(field)}"]
    elif example is None and tensors:
        arguments = _tensor_arguments(tensors)
    else:
        if example is None:
            example = _sample(schema) if kind == "json" and schema else [1.0, 2.0, 3.0, 4.0]
        arguments = ["-d", json.dumps(example)]
    return f"curl {url} {shlex.join(arguments)}"


def _tensor_arguments(tensors: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a row of these inputs as JSON, or as files where it is long or of unknown shape."""
    rows = {str(it["name"]): _zeros(it) for it in tensors}
    text = json.dumps(rows if len(rows) > 1 else next(iter(rows.values())))
    if len(text) <= _MOST_CHARACTERS and all(it["shape"] for it in tensors):
        return ["-d", text]
    files = [argument for name in rows for argument in ("-F", f"{name}=@{name}.npy")]
    return files if len(rows) > 1 else ["-T", "row.npy"]


def _zeros(tensor: Mapping[str, Any]) -> Any:
    """Returns a row of nested lists; axes of any length get 1 place, in images 64."""
    axes = tensor["shape"][1:]
    unknown = 64 if len(axes) >= _AXES_OF_IMAGES else 1
    value: Any = "some text" if tensor["datatype"] == "BYTES" else 0
    for axis in reversed(axes):
        value = [value] * (axis if axis > 0 else unknown)
    return value


def _sample(schema: Mapping[str, Any]) -> Any:
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
