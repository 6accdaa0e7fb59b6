"""Files of an archive, judged and never executed: Python, files without code, weights."""

import ast
import importlib
import importlib.util
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workers.python_models.targets import TENSOR_SUFFIXES, Target
from workers.python_models.tensor_model import (
    DYNAMIC,
    Port,
    how_to_export,
    is_one_by_one,
    load_net,
)

_TARGET, _WEIGHTS = "target", "weights"
_LOADERS = {".onnx": "onnxruntime", ".pt2": "torch.export", ".so": "AOTInductor"}
_CHECKPOINTS = (".pt", ".pth", ".ts")
# Where torch says in a page of text which class it has met.
_FOREIGN_CLASS = re.compile(r"Unsupported (?:global|class)\W+(?:GLOBAL )?([\w.]+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about one part of the archive; a problem says what to do.

    A problem keeps the model from running as it is meant to; a note should be read.
    """

    part: str
    verdict: Literal["ok", "note", "problem"]
    text: str


def ok(part: str, text: str) -> Finding:
    return Finding(part, "ok", text)


def note(part: str, text: str) -> Finding:
    return Finding(part, "note", text)


def problem(part: str, text: str) -> Finding:
    return Finding(part, "problem", text)


def parsed(name: str, path: Path) -> ast.Module | Finding:
    """Returns the file's syntax tree, or what keeps Python from reading it."""
    try:
        return ast.parse(path.read_bytes(), name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f"{name}, line {line}" if line else name
        return problem("handler", f"{where}: not Python ({getattr(error, 'msg', error)})")


def names_of(body: list[ast.stmt]) -> set[str]:
    """Returns the functions of a module or class; names that it imports or assigns count, too."""
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def coroutines_of(body: list[ast.stmt]) -> set[str]:
    return {node.name for node in body if isinstance(node, ast.AsyncFunctionDef)}


def examine_target(model: Mapping[str, Any], folder: Path) -> Finding:
    """Returns whether the worker will find the target, and can run it.

    Args:
        model: the manifest's section.
        folder: of the unpacked archive.
    """
    named = model.get("target") or model.get("serializedFile")
    if not isinstance(named, str) or not named:
        return problem(_TARGET, "the manifest names no target, and no serializedFile")
    target = Target.of(named, folder)
    if target.path is None:
        return _examine_pipeline(target.name)
    if not target.path.is_file():
        return problem(_TARGET, f"{named} is not in the archive")
    if target.path.suffix == ".py":
        return _examine_python(target, target.path)
    return _examine_tensor_file(target.path)


def _examine_pipeline(name: str) -> Finding:
    if importlib.util.find_spec("transformers") is None:
        return problem(_TARGET, f"hf:{name} needs transformers, which is not installed here")
    if Path(name).is_absolute() and not Path(name).is_dir():
        return problem(_TARGET, f"there is no folder {name}")
    where = "is read where it lies" if Path(name).is_dir() else "is fetched when a worker starts"
    return note(_TARGET, f"hf:{name} {where}, and was not looked into")


def _examine_python(target: Target, path: Path) -> Finding:
    name = target.name or "predict"
    tree = parsed(path.name, path)
    if isinstance(tree, Finding):
        return tree
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    if name in names_of(tree.body) | classes:
        return ok(_TARGET, target.text.rpartition("/")[2])
    if name in coroutines_of(tree.body):
        return problem(_TARGET, f"{path.name}: {name} must not be async")
    return problem(_TARGET, f"{path.name}: {name} is not there: no function or class of the file")


def _examine_tensor_file(path: Path) -> Finding:
    read = {".onnx": _onnx_inputs, ".pt2": _program_inputs}.get(path.suffix)
    if read is None:
        if path.suffix in TENSOR_SUFFIXES and _is_torchscript(path):
            return ok(_TARGET, f"{path.name} is TorchScript")
        text = f"{path.name} is not TorchScript: export the model with torch.export"
        return problem(_TARGET, text)
    inputs = read(path)
    if isinstance(inputs, Finding):
        return inputs
    try:
        if is_one_by_one(path, inputs):
            why = "its first axis is fixed to 1, so rows are run one by one"
            return note(_TARGET, f"{path.name}: {why}: {how_to_export(path)}")
    except ValueError as error:
        return problem(_TARGET, f"{path.name}: {error}")
    return ok(_TARGET, f"{path.name} takes batches of {', '.join(port.name for port in inputs)}")


def _onnx_inputs(path: Path) -> Finding | list[Port]:
    """Returns the inputs of an ONNX graph, or why it cannot be loaded. A graph is no code."""
    if importlib.util.find_spec("onnxruntime") is None:
        return problem(_TARGET, f"{path.name} needs onnxruntime, which is not installed here")
    try:
        return list(load_net(path, "cpu").inputs)
    except Exception as error:  # onnxruntime has many
        why = str(error).rpartition("Error: ")[2].replace(f"{path.parent}/", "")
        if "External data" in why:
            why += " (weights beside the file: archive them, too, with --extra-files)"
        return problem(_TARGET, f"{path.name} cannot be loaded: {why}")


def _program_inputs(path: Path) -> Finding | list[Port]:
    """Reads what torch.export has written; torch itself would evaluate expressions of it."""
    try:
        with zipfile.ZipFile(path) as bundle:
            entries = bundle.namelist()
            if any("data/aotinductor/" in entry for entry in entries):
                return problem(_TARGET, f"{path.name} is compiled by AOTInductor: write a handler")
            program = next((name for name in entries if name.endswith("/models/model.json")), None)
            if program is None:
                text = f"{path.name} was not looked into: another torch has written it"
                return note(_TARGET, text)
            graph_module = json.loads(bundle.read(program))["graph_module"]
        values = graph_module["graph"]["tensor_values"]
        specs = [it for it in graph_module["signature"]["input_specs"] if "user_input" in it]
        names = [it["user_input"]["arg"]["as_tensor"]["name"] for it in specs]
        shapes = {
            name: [size.get("as_int", DYNAMIC) for size in values[name]["sizes"]] for name in names
        }
        return [Port(name, "", shape) for name, shape in shapes.items()]
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, RecursionError):
        text = f"{path.name} is no program of torch.export that takes tensors alone"
        return problem(_TARGET, text)


def _is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as bundle:
            return any("/code/" in entry for entry in bundle.namelist())
    except zipfile.BadZipFile:
        return False


def examine_weights(path: Path, *, has_model_file: bool, is_loaded_by_us: bool) -> Finding:
    """Returns whether the handler can load this file.

    Args:
        path: the serialized file.
        has_model_file: the archive brings the class of the model; the file is its state dict.
        is_loaded_by_us: BaseHandler loads it; a handler of its own loads what it likes.
    """
    name = path.name
    if not has_model_file and path.suffix in _LOADERS:
        inputs = _onnx_inputs(path) if path.suffix == ".onnx" else None
        if isinstance(inputs, Finding):
            return (problem if is_loaded_by_us else note)(_WEIGHTS, inputs.text)
        return ok(_WEIGHTS, f"{name} is loaded by {_LOADERS[path.suffix]}")
    if not has_model_file and path.suffix in _CHECKPOINTS and _is_torchscript(path):
        return ok(_WEIGHTS, f"{name} is TorchScript")
    if has_model_file or not is_loaded_by_us:
        return _examine_checkpoint(path, is_loaded_by_us=is_loaded_by_us)
    return problem(
        _WEIGHTS,
        f"{name} is not TorchScript (.pt, .pth or .ts); for a state dict, archive the model's "
        "class too (--model-file), or export the model with torch.jit or torch.export",
    )


def _examine_checkpoint(path: Path, *, is_loaded_by_us: bool) -> Finding:
    """Loads the file with `weights_only`, as BaseHandler does in a worker."""
    name = path.name
    if importlib.util.find_spec("torch") is None:
        return note(_WEIGHTS, f"{name} was not looked into: torch is not installed here")
    torch = importlib.import_module("torch")
    try:
        state = torch.load(path, map_location="meta", weights_only=True)
    except Exception as error:
        foreign = _FOREIGN_CLASS.search(str(error))
        if foreign is None and not is_loaded_by_us:
            return note(_WEIGHTS, f"{name} is the handler's own business")
        if foreign is None:
            return problem(_WEIGHTS, f"{name} is no checkpoint that torch.load can read")
        text = f"{name} holds more than weights ({foreign[1]})"
        if not is_loaded_by_us:
            return note(_WEIGHTS, f"{text}: a handler that unpickles it runs what is in it")
        return problem(_WEIGHTS, f"{text}: save it with torch.save(model.state_dict())")
    count = len(state) if isinstance(state, dict) else 1
    return ok(_WEIGHTS, f"{name} holds weights only ({count} entries)")
