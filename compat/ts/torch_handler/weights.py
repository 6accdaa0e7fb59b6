"""Loads weights: TorchScript, ONNX, torch.export, AOTInductor.

Weights are data: no loader runs a pickle that came with the archive.
"""

import contextlib
import ctypes
import importlib
import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.export.passes import move_to_device_pass

# Only a .pt2 file that holds compiled code, not a graph, has this folder.
_COMPILED_FOLDER = "data/aotinductor/"
# TorchScript's error names this when it does not know a class of TensorRT.
_TENSORRT_CLASSES = "torch.classes.tensorrt"
_FORCE_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def give_back_memory() -> None:
    """Gives freed memory back to the system, where the C library is glibc.

    glibc would keep the small pieces, which add up to as much as the network. On a GPU, torch would
    keep the memory that warming up has used, and other workers' models need it.
    """
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def load_torchscript(path: str, device: torch.device) -> Any:
    """Returns the scripted or traced module on this device, with its TensorRT engines.

    Raises:
        ImportError: it has such engines, and torch_tensorrt is not installed.
    """
    with warnings.catch_warnings():
        # Existing archives hold TorchScript, although new models should be exported otherwise.
        warnings.filterwarnings("ignore", r".*torch\.jit\.load")
        try:
            return torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if _TENSORRT_CLASSES not in str(error):
                raise
            # Importing it defines the classes. TorchServe imports it for every model, which takes
            # long.
            importlib.import_module("torch_tensorrt")
            return torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]


def load_onnx(path: str, device: torch.device) -> Any:
    """Returns an onnxruntime session on this worker's share of the cores, or on its GPU."""
    try:
        onnxruntime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise RuntimeError(f"onnxruntime is needed for .onnx weights: {error}") from error
    options = onnxruntime.SessionOptions()
    # It does not read OMP_NUM_THREADS: each worker would compute on all cores.
    options.intra_op_num_threads = torch.get_num_threads()
    providers: list[Any] = ["CPUExecutionProvider"]
    if device.type == "cuda":
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": device.index or 0}))
    return onnxruntime.InferenceSession(path, options, providers=providers)


def run_onnx(session: Any, data: Any) -> Any:
    """Runs an onnxruntime session over the batch.

    Args:
        session: as from `load_onnx`.
        data: a tensor for its only input, or a dict of tensors by input name.

    Returns:
        A tensor if the model has one output, else a dict of tensors by output name.
    """
    feeds = data if isinstance(data, dict) else {session.get_inputs()[0].name: data}
    arrays = {name: torch.as_tensor(value).cpu().numpy() for name, value in feeds.items()}
    outputs = [torch.from_numpy(array) for array in session.run(None, arrays)]
    if len(outputs) == 1:
        return outputs[0]
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, outputs, strict=True))


def load_pt2(path: str, device: torch.device) -> Any:
    """Returns a callable from a .pt2 file: torch.export's graph, or AOTInductor's compiled package.

    Raises:
        RuntimeError: the file is neither, or wants to unpickle more than weights.
    """
    if not zipfile.is_zipfile(path):
        raise RuntimeError(f"{Path(path).name} is not a .pt2 file")
    with zipfile.ZipFile(path) as bundle:
        is_compiled = any(_COMPILED_FOLDER in name for name in bundle.namelist())
    if is_compiled:
        # torch has no public name for either loader.
        options = {} if device.index is None else {"device_index": device.index}
        return torch._inductor.aoti_load_package(path, **options)  # noqa: SLF001
    before = os.environ.get(_FORCE_WEIGHTS_ONLY)
    # Keeps torch.export from unpickling anything once `weights_only` has failed.
    os.environ[_FORCE_WEIGHTS_ONLY] = "1"
    try:
        program = torch.export.load(path)
    finally:
        del os.environ[_FORCE_WEIGHTS_ONLY]
        if before is not None:
            os.environ[_FORCE_WEIGHTS_ONLY] = before
    if device.type != "cpu":
        program = move_to_device_pass(program, device)
    return program.module()
