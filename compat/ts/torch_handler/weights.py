"""Loads models that need no Python source: TorchScript, ONNX, torch.export, AOTInductor.

Weights are data: none of these runs a pickle that came with the archive.
"""

import contextlib
import importlib
import os
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

import torch
from torch.export.passes import move_to_device_pass

# What torch writes into a .pt2 file that holds compiled code rather than a graph.
_COMPILED_FOLDER = "data/aotinductor/"
_FORCE_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def load_torchscript(path: str, device: torch.device) -> Any:
    """The scripted or traced module on this device."""
    with warnings.catch_warnings():
        # Existing archives hold TorchScript, whatever new models should be exported with.
        warnings.filterwarnings("ignore", r".*torch\.jit\.load", FutureWarning)
        return torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]


def load_onnx(path: str, device: torch.device) -> Any:
    """An onnxruntime session.

    Raises:
        RuntimeError: onnxruntime is not installed.
    """
    try:
        onnxruntime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise RuntimeError("onnxruntime is needed for .onnx weights") from error
    providers = ["CPUExecutionProvider"]
    if device.type == "cuda":
        providers.insert(0, "CUDAExecutionProvider")
    return onnxruntime.InferenceSession(path, providers=providers)


def run_onnx(session: Any, data: Any) -> Any:
    """What an onnxruntime session says of the batch.

    Args:
        session: as from `load_onnx`.
        data: a tensor for its only input, or a dict of tensors by input name.

    Returns:
        A tensor if it has one output, else a dict of tensors by output name.
    """
    feeds = data if isinstance(data, dict) else {session.get_inputs()[0].name: data}
    arrays = {name: torch.as_tensor(value).cpu().numpy() for name, value in feeds.items()}
    outputs = [torch.from_numpy(array) for array in session.run(None, arrays)]
    if len(outputs) == 1:
        return outputs[0]
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, outputs, strict=True))


def load_pt2(path: str, device: torch.device) -> Any:
    """A callable from a .pt2 file: torch.export's graph, or AOTInductor's compiled package.

    Raises:
        RuntimeError: neither, or one that wants to unpickle more than weights.
    """
    if not zipfile.is_zipfile(path):
        raise RuntimeError(f"{os.path.basename(path)} is not a .pt2 file")  # noqa: PTH119
    with zipfile.ZipFile(path) as bundle:
        is_compiled = any(_COMPILED_FOLDER in name for name in bundle.namelist())
    if is_compiled:
        # torch has no public name for either loader.
        options = {} if device.index is None else {"device_index": device.index}
        return torch._inductor.aoti_load_package(path, **options)  # noqa: SLF001
    with _weights_only():
        program = torch.export.load(path)
    if device.type != "cpu":
        program = move_to_device_pass(program, device)
    return program.module()


def load_aot_library(path: str, device: torch.device) -> Any:
    """A callable from the .so file that `torch._export.aot_compile` wrote."""
    if device.type == "cuda":
        # The loader knows no device number.
        torch.cuda.set_device(device)
    return torch._export.aot_load(path, device.type)  # noqa: SLF001


@contextlib.contextmanager
def _weights_only() -> Iterator[None]:
    """torch.export tries `weights_only` first and unpickles anything when that fails; not here."""
    before = os.environ.get(_FORCE_WEIGHTS_ONLY)
    os.environ[_FORCE_WEIGHTS_ONLY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FORCE_WEIGHTS_ONLY]
        else:
            os.environ[_FORCE_WEIGHTS_ONLY] = before
