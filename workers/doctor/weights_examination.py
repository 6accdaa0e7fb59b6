"""The weights: whether the handler can load them, without running anything that is in them."""

import importlib
import importlib.util
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from workers.doctor.findings import Finding, note, ok, problem

PART = "weights"
TORCHSCRIPT_SUFFIXES = (".pt", ".pth", ".ts")
_PICKLES = (".pkl", ".pickle", ".joblib", ".dill")
_TORCHSCRIPT_FOLDER = "/code/"
# Where torch says in a page of text which class it has met.
_FOREIGN_CLASS = re.compile(r"Unsupported (?:global|class)\W+(?:GLOBAL )?([\w.]+)")


def examine_weights(
    path: Path, *, has_model_file: bool, is_loaded_by_us: bool, is_unpickling: bool = False
) -> Iterator[Finding]:
    """Yields whether the handler can load this file.

    Args:
        path: the serialized file.
        has_model_file: the archive brings the class of the model; the file is its state dict.
        is_loaded_by_us: BaseHandler loads it; a handler of its own loads what it likes.
        is_unpickling: such a handler may read more than weights from a checkpoint.
    """
    name = path.name
    if has_model_file:
        yield from _examine_checkpoint(path, is_unpickling=is_unpickling)
    elif name.endswith(TORCHSCRIPT_SUFFIXES):
        if _is_torchscript(path):
            yield ok(PART, f"{name} is TorchScript")
        elif is_loaded_by_us:
            yield problem(
                PART,
                f"{name} is not TorchScript; for a state dict, archive the model's class too "
                "(--model-file), or export the model with torch.jit or torch.export",
            )
        else:
            yield from _examine_checkpoint(path, is_unpickling=is_unpickling)
    elif name.endswith(".onnx"):
        yield _needs_package(name, "onnxruntime")
    elif name.endswith((".pt2", ".so")):
        yield ok(PART, f"{name} is loaded as torch.export or AOTInductor wrote it")
    elif is_loaded_by_us:
        yield problem(PART, f"{name}: weights end in .pt, .pth, .ts, .onnx, .pt2 or .so")
    else:
        yield note(PART, f"{name} is the handler's own business")


def examine_other_files(names: Iterable[str]) -> Iterator[Finding]:
    """Pickles among the extra files."""
    for name in names:
        if name.endswith(_PICKLES):
            yield note(PART, f"{name} is a pickle: a handler that loads it runs what is in it")


def _is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as bundle:
            return any(_TORCHSCRIPT_FOLDER in entry for entry in bundle.namelist())
    except zipfile.BadZipFile:
        return False


def _examine_checkpoint(path: Path, *, is_unpickling: bool) -> Iterator[Finding]:
    """Loads it with `weights_only`, which is what decides in a worker, too, unless it unpickles."""
    if importlib.util.find_spec("torch") is None:
        yield note(PART, f"{path.name} was not looked into: torch is not installed here")
        return
    torch = importlib.import_module("torch")
    try:
        state: Any = torch.load(path, map_location="meta", weights_only=True)
    except Exception as error:
        yield _refusal(path.name, str(error), is_unpickling=is_unpickling)
        return
    count = len(state) if isinstance(state, dict) else 1
    yield ok(PART, f"{path.name} holds weights only ({count} entries)")


def _refusal(name: str, error: str, *, is_unpickling: bool) -> Finding:
    foreign = _FOREIGN_CLASS.search(error)
    if foreign is None:
        if is_unpickling:
            return note(PART, f"{name} is the handler's own business")
        return problem(PART, f"{name} is no checkpoint that torch.load can read")
    text = f"{name} holds more than weights ({foreign[1]})"
    if is_unpickling:
        return note(PART, f"{text}: a handler that loads it runs what is in it")
    return problem(PART, f"{text} and is refused; save it anew with torch.save(model.state_dict())")


def _needs_package(name: str, package: str) -> Finding:
    if importlib.util.find_spec(package) is None:
        return problem(PART, f"{name} needs the package {package}, which is not installed here")
    return ok(PART, f"{name} is run by {package}")
