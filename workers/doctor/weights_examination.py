"""The weights: whether the handler can load them, without running anything that is in them."""

import importlib
import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from workers.doctor.findings import Finding, note, ok, problem
from workers.doctor.target_examination import is_torchscript, onnx_file

PART = "weights"
_CHECKPOINTS = (".pt", ".pth", ".ts")
_LOADERS = {".onnx": "onnxruntime", ".pt2": "torch.export", ".so": "AOTInductor"}
_PICKLES = (".pkl", ".pickle", ".joblib", ".dill")
# Where torch says in a page of text which class it has met.
_FOREIGN_CLASS = re.compile(r"Unsupported (?:global|class)\W+(?:GLOBAL )?([\w.]+)")


def examine_weights(path: Path, *, has_model_file: bool, is_loaded_by_us: bool) -> Finding:
    """Returns whether the handler can load this file.

    Args:
        path: the serialized file.
        has_model_file: the archive brings the class of the model; the file is its state dict.
        is_loaded_by_us: BaseHandler loads it; a handler of its own loads what it likes.
    """
    name = path.name
    if not has_model_file and path.suffix in _LOADERS:
        examined = onnx_file(path) if path.suffix == ".onnx" else None
        if isinstance(examined, Finding):
            return problem(PART, examined.text) if is_loaded_by_us else note(PART, examined.text)
        return ok(PART, f"{name} is loaded by {_LOADERS[path.suffix]}")
    if not has_model_file and _is_torchscript(path):
        return ok(PART, f"{name} is TorchScript")
    if has_model_file or not is_loaded_by_us:
        return _examine_checkpoint(path, is_loaded_by_us=is_loaded_by_us)
    return problem(
        PART,
        f"{name} is not TorchScript (.pt, .pth or .ts); for a state dict, archive the model's "
        "class too (--model-file), or export the model with torch.jit or torch.export",
    )


def examine_other_files(names: Iterable[str]) -> Iterator[Finding]:
    """Yields a note for each pickle among the extra files."""
    for name in names:
        if name.endswith(_PICKLES):
            yield note(PART, f"{name} is a pickle: a handler that loads it runs what is in it")


def _is_torchscript(path: Path) -> bool:
    return path.suffix in _CHECKPOINTS and is_torchscript(path)


def _examine_checkpoint(path: Path, *, is_loaded_by_us: bool) -> Finding:
    """Loads the file with `weights_only`, as BaseHandler does in a worker."""
    name = path.name
    if importlib.util.find_spec("torch") is None:
        return note(PART, f"{name} was not looked into: torch is not installed here")
    torch = importlib.import_module("torch")
    try:
        state = torch.load(path, map_location="meta", weights_only=True)
    except Exception as error:
        foreign = _FOREIGN_CLASS.search(str(error))
        if foreign is None and not is_loaded_by_us:
            return note(PART, f"{name} is the handler's own business")
        if foreign is None:
            return problem(PART, f"{name} is no checkpoint that torch.load can read")
        text = f"{name} holds more than weights ({foreign[1]})"
        if not is_loaded_by_us:
            return note(PART, f"{text}: a handler that unpickles it runs what is in it")
        return problem(PART, f"{text}: save it anew with torch.save(model.state_dict())")
    count = len(state) if isinstance(state, dict) else 1
    return ok(PART, f"{name} holds weights only ({count} entries)")
