"""Finds a model's handler as TorchServe does, and loads it.

Source: TorchServe 0.12 docs/custom_service.md, module and class level entry points.
"""

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from ts import __version__ as ts_version
from ts.context import Context
from ts.metrics import MetricTypes
from ts.utils.util import list_classes_from_module

from batching.metrics import read_metrics_config
from batching.models.spec import ModelSpec
from batching.settings.settings import Settings
from workers.archives.model_archive import (
    BUILT_IN_PACKAGE,
    DEFAULT_FUNCTION,
    read_model_config,
    split_handler,
)
from workers.machine import Device, require_safe_torch
from workers.python_models.python_model import LoadedTarget, target_of

BASE_HANDLER = f"{BUILT_IN_PACKAGE}.base_handler"

# A worker has loaded these before it loads a handler.
OWN_PACKAGES = ("batching", "workers")

# GPUs from Ampere on multiply in TF32.
TF32_CAPABILITY = (8, 0)

Entry = Callable[[Any, Context], Any]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Holds a handler that is ready: `entry(rows, context)` answers with one element per row."""

    entry: Entry
    context: Context
    decodes_itself: bool = False  # `entry` takes the claimed requests themselves
    interface: Mapping[str, Any] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
    code_dir: Path = Path()  # of the model's own code


def load_model(spec: ModelSpec, model_dir: Path, device: Device, settings: Settings) -> LoadedModel:
    """Imports and initialises the handler; this process belongs to the model from then on.

    The current directory is the model's folder, which is importable, too. Raises anything that the
    handler raises, and errors of its own if there is no such handler.
    """
    require_safe_torch()
    if CompilerDeferred not in sys.meta_path:
        sys.meta_path.insert(0, CompilerDeferred)
    model_dir = model_dir.absolute()
    if not spec.decodes_itself:
        _enter_folder(model_dir, spec.handler)
    with contextlib.suppress(ImportError):  # a worker for handlers that read no images
        image: Any = importlib.import_module("PIL.Image")
        image.MAX_IMAGE_PIXELS = settings.max_image_pixels or None
        # Pillow refuses images over twice the limit, and only warns of those over the limit.
        warnings.simplefilter("error", image.DecompressionBombWarning)
    context = Context(
        model_name=spec.model_name,
        model_dir=str(model_dir),
        manifest=None if spec.manifest is None else dict(spec.manifest),
        batch_size=spec.batch_size,
        gpu=device.index,
        mms_version=ts_version,
        limit_max_image_pixels=settings.max_image_pixels > 0,
        model_yaml_config=read_model_config(model_dir, spec.manifest),
    )
    for metric in read_metrics_config(settings.metrics_config):  # for `get_metric`
        kind = MetricTypes(metric.kind.value)
        context.metrics.add_metric_to_cache(metric.name, metric.unit, metric.dimensions, kind)
    if spec.decodes_itself:
        folder = code_dir_of(spec, model_dir)
        _enter_folder(folder, "")
        name = str(context.model_yaml_config.get("device") or device)
        loaded = LoadedTarget(spec, context, model_dir, name)
        _choose_gpu(device)
        return LoadedModel(loaded.run, context, True, loaded.interface, loaded.close, folder)
    module_name, function_name = split_handler(spec.handler)
    module = _import_handler(module_name)
    _choose_gpu(device)
    entry = getattr(module, function_name, None)
    if entry is not None:
        # Such a handler initialises itself on the first call, without data.
        _require_plain(entry)
        entry(None, context)
        return LoadedModel(entry, context, code_dir=model_dir)
    classes = [kind for kind in list_classes_from_module(module) if not inspect.isabstract(kind)]
    if len(classes) != 1:
        names = ", ".join(kind.__name__ for kind in classes) or "none"
        raise ValueError(
            f"Handler module {module.__name__!r} must have a function {DEFAULT_FUNCTION!r} "
            f"or exactly one class; its classes: {names}."
        )
    service = classes[0]()
    service.initialize(context)
    # Looked up only now: `initialize` may have replaced it (MicroBatching).
    _require_plain(service.handle)
    return LoadedModel(service.handle, context, code_dir=model_dir)


def code_dir_of(spec: ModelSpec, model_dir: Path) -> Path:
    """Returns the folder of the model's own code, which may be served where it lies."""
    if spec.decodes_itself:
        with contextlib.suppress(ValueError):  # loading reports a manifest that names nothing
            path = target_of(spec, model_dir).path
            return model_dir if path is None else path.parent
    return model_dir


def _enter_folder(model_dir: Path, handler: str) -> None:
    root = model_dir.resolve()
    os.chdir(model_dir)
    handler_dir = (root / PurePosixPath(handler.partition(":")[0]).parent).resolve()
    folders = [str(model_dir)]
    if handler_dir != root:
        folders.insert(0, str(handler_dir))
    sys.path[:0] = folders
    importlib.invalidate_caches()
    for package in OWN_PACKAGES:
        names = (f"{package}.py", f"{package}/__init__.py")
        if any(Path(folder, name).is_file() for folder in folders for name in names):
            # Later imports of this package find the archive's; the worker keeps its own modules.
            for name in [name for name in sys.modules if name.partition(".")[0] == package]:
                del sys.modules[name]


def _choose_gpu(device: Device) -> None:
    """Makes a handler's plain `.cuda()` use its worker's GPU, instead of the first one.

    Only if the handler has loaded torch, as this takes some memory of the GPU.
    """
    torch = sys.modules.get("torch")
    if device.kind != "cuda" or torch is None or not torch.cuda.is_available():
        return
    torch.cuda.set_device(device.index)
    # TF32 where the GPU has it, unless the handler's module has chosen. TorchServe 0.12 does this
    # when ts/torch_handler/base_handler.py is imported; the worker's GPU is not known then, and to
    # ask would take memory of the first one.
    # Torch refuses this name after a choice by its newer names.
    with contextlib.suppress(RuntimeError):
        is_default = torch.get_float32_matmul_precision() == "highest"
        is_base = BASE_HANDLER in sys.modules
        if is_base and is_default and torch.cuda.get_device_capability() >= TF32_CAPABILITY:
            torch.set_float32_matmul_precision("high")


def _import_handler(module_name: str) -> ModuleType:
    if not module_name:
        raise ImportError("The model names no handler.")
    # If the archive's own handler lacks a package, no built-in one may run in its place.
    built_in = f"{BUILT_IN_PACKAGE}.{module_name}"
    for name in (module_name, built_in):
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise ImportError(f"Handler {module_name!r} is neither a module of the archive nor built in.")


def _require_plain(entry: Any) -> None:
    if inspect.iscoroutinefunction(entry):
        raise NotImplementedError(
            f"{entry.__qualname__} is a coroutine, as of handlers that answer out of order, which "
            "are left out: define it without async, and run the engine inside of it."
        )


# --- torch's compiler. One module of torchvision takes one function from it, and calls that only on
# GPUs that must be deterministic. Dynamo and sympy come with it: they take as long to import as
# torch itself, and some 100 MB in each worker.

_IMPORTER = "torchvision.ops.roi_align"
_COMPILER = "torch._dynamo.utils"


class CompilerDeferred(SourceFileLoader):
    """Runs that module while the compiler's name stands for a module that loads it when used."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == _IMPORTER else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = cls(spec.loader.name, spec.loader.path)
        return spec

    def exec_module(self, module: ModuleType) -> None:
        late = _LateCompiler(_COMPILER)
        sys.modules.setdefault(_COMPILER, late)
        try:
            super().exec_module(module)
        finally:
            late.leave()


class _LateCompiler(ModuleType):
    def is_compile_supported(self, device: Any) -> Any:
        return importlib.import_module(_COMPILER).is_compile_supported(device)

    def leave(self) -> None:
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks whether it is a package
            raise AttributeError(name)
        self.leave()
        return getattr(importlib.import_module(_COMPILER), name)
