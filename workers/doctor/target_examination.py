"""Targets: a Python file's model or a file without code, judged without running either."""

import ast
import importlib.util
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workers.doctor.findings import Finding, note, ok, problem
from workers.doctor.source_examination import names_of, parse_source
from workers.python_models.targets import TENSOR_SUFFIXES, Target
from workers.python_models.tensor_model import (
    DYNAMIC,
    Port,
    how_to_export,
    is_one_by_one,
    load_net,
)

PART = "target"
_TORCHSCRIPT_FOLDER = "/code/"
_PROGRAM = "/models/model.json"


def examine_target(model: Mapping[str, Any], folder: Path) -> Iterator[Finding]:
    """Yields whether the worker will find the target, and can run it.

    Args:
        model: the manifest's section.
        folder: of the unpacked archive.
    """
    text = model.get("target") or model.get("serializedFile")
    if not isinstance(text, str) or not text:
        yield problem(PART, "the manifest names no target, and no serializedFile")
        return
    target = Target.of(text, folder)
    if target.path is None:
        yield _pipeline(target.name)
    elif not target.path.is_file():
        yield problem(PART, f"{text} is not in the archive")
    elif target.path.suffix == ".py":
        yield _python(target)
    else:
        yield tensor_file(target.path)


def onnx_file(path: Path) -> Finding | list[Port]:
    """Returns the inputs of an ONNX graph, or why it cannot be loaded. A graph is no code."""
    if importlib.util.find_spec("onnxruntime") is None:
        return problem(PART, f"{path.name} needs onnxruntime, which is not installed here")
    try:
        return list(load_net(path, "cpu").inputs)
    except Exception as error:  # onnxruntime has many
        text = str(error).rpartition("Error: ")[2].replace(f"{path.parent}/", "")
        is_data = "External data" in text
        advice = " (weights beside the file: archive them, too, with --extra-files)"
        return problem(PART, f"{path.name} cannot be loaded: {text}{advice if is_data else ''}")


def tensor_file(path: Path) -> Finding:
    """Returns whether a file without code can be served."""
    read = {".onnx": onnx_file, ".pt2": _program_inputs}.get(path.suffix, _script)
    inputs, name = read(path), path.name
    if isinstance(inputs, Finding):
        return inputs
    try:
        if is_one_by_one(path, inputs):
            why = "its first axis is fixed to 1, so rows are run one by one"
            return note(PART, f"{name}: {why}: {how_to_export(path)}")
    except ValueError as error:
        return problem(PART, f"{name}: {error}")
    return ok(PART, f"{name} takes batches of {', '.join(port.name for port in inputs)}")


def _script(path: Path) -> Finding:
    if path.suffix in TENSOR_SUFFIXES and is_torchscript(path):
        return ok(PART, f"{path.name} is TorchScript")
    return problem(PART, f"{path.name} is not TorchScript: export the model with torch.export")


def is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as bundle:
            return any(_TORCHSCRIPT_FOLDER in entry for entry in bundle.namelist())
    except zipfile.BadZipFile:
        return False


def _program_inputs(path: Path) -> Finding | list[Port]:
    """Reads what torch.export has written; torch itself would evaluate expressions of it."""
    try:
        with zipfile.ZipFile(path) as bundle:
            names = bundle.namelist()
            if any("data/aotinductor/" in name for name in names):
                return problem(PART, f"{path.name} is compiled by AOTInductor: write a handler")
            found = next((name for name in names if name.endswith(_PROGRAM)), None)
            if found is None:
                return note(PART, f"{path.name} was not looked into: another torch has written it")
            graph_module = json.loads(bundle.read(found))["graph_module"]
        values = graph_module["graph"]["tensor_values"]
        specs = [one["user_input"]["arg"] for one in _user_inputs(graph_module)]
        names = [one["as_tensor"]["name"] for one in specs]
        return [Port(name, "", _shape(values[name]["sizes"])) for name in names]
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, RecursionError):
        return problem(PART, f"{path.name} is no program of torch.export that takes tensors alone")


def _user_inputs(graph_module: Mapping[str, Any]) -> list[Any]:
    return [one for one in graph_module["signature"]["input_specs"] if "user_input" in one]


def _shape(sizes: list[Mapping[str, Any]]) -> list[int]:
    return [size.get("as_int", DYNAMIC) for size in sizes]


def _python(target: Target) -> Finding:
    assert target.path is not None
    name = target.name or "predict"
    parsed = parse_source(target.path.name, target.path)
    if isinstance(parsed, Finding):
        return parsed
    body = parsed.tree.body
    classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
    if name in names_of(body) | classes:
        return ok(PART, target.text.rpartition("/")[2])
    is_async = any(isinstance(node, ast.AsyncFunctionDef) and node.name == name for node in body)
    why = "must not be async" if is_async else "is not there: no function or class of the file"
    return problem(PART, f"{parsed.name}: {name} {why}")


def _pipeline(name: str) -> Finding:
    if importlib.util.find_spec("transformers") is None:
        return problem(PART, f"hf:{name} needs transformers, which is not installed here")
    if Path(name).is_absolute() and not Path(name).is_dir():
        return problem(PART, f"there is no folder {name}")
    where = "is read where it lies" if Path(name).is_dir() else "is fetched when a worker starts"
    return note(PART, f"hf:{name} {where}, and was not looked into")
