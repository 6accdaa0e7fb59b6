"""Finds what a target names: a class or function in a Python file, or a file without code."""

import inspect
import sys
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ferry.modeling import MARK, Model

SOURCES = "sources"
HUGGING_FACE = "hf:"
TENSOR_SUFFIXES = frozenset({".onnx", ".pt", ".pts", ".pth", ".ts", ".pt2"})


@dataclass(frozen=True, slots=True)
class Target:
    """Names what is served. `path` is absolute, or None for `hf:NAME`; `name` may be empty."""

    text: str
    path: Path | None
    name: str = ""

    @classmethod
    def of(cls, text: str, model_dir: Path) -> "Target":
        """Reads `FILE.py:NAME`, `FILE.onnx` or `hf:NAME`; files are relative to the folder."""
        if text.startswith(HUGGING_FACE):
            return cls(text, None, text.removeprefix(HUGGING_FACE))
        file, _, name = text.partition(".py:")
        return cls(text, (model_dir / (f"{file}.py" if name else text)).absolute(), name)


def find_model(module: ModuleType, name: str) -> Model:
    """Returns an object of the model class of this name, or one around the function.

    Raises:
        LookupError, TypeError: there is none, or its `predict` is a coroutine.
    """
    member = getattr(module, name or "predict", None)
    if inspect.isclass(member) and issubclass(member, Model):
        model: Model = member()
    elif callable(member) and not inspect.isclass(member):
        model = Model()
        vars(model).update(getattr(member, MARK, {}), predict=member, __doc__=member.__doc__)
    else:
        raise LookupError(f"{module.__name__} has no function and no ferry.Model called {name!r}.")
    if inspect.iscoroutinefunction(model.predict):
        raise TypeError(
            f"{name or 'predict'} must not be async: it is given a whole batch at once, which is "
            "the concurrency. Write `def predict`."
        )
    return model


def load_module(path: Path, model_dir: Path) -> ModuleType:
    """Imports a target's Python file, and the modules beside it.

    With `sources` in the model's folder, the code is the copy from the registration; errors and
    `__file__` still have the path of the original.

    Raises:
        FileNotFoundError: there is no such file.
        Exception: whatever the file raises.
    """
    name, copies = path.stem, model_dir / SOURCES
    loader = None
    if copies.is_dir():
        sys.meta_path.insert(0, _RegisteredModules(path.parent, copies))
        loader = _CopyLoader(name, path, copies / path.name)
    elif not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # as an import does: dataclasses look there for their types
    spec.loader.exec_module(module)
    return module


class _RegisteredModules(MetaPathFinder):
    """Finds the modules beside the target's file, and compiles them from their copies."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self._folder = folder
        self._copies = copies

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        module = name.replace(".", "/")
        for file in (f"{module}/__init__.py", f"{module}.py"):
            copy, path = self._copies / file, self._folder / file
            if copy.is_file():
                return spec_from_file_location(name, path, loader=_CopyLoader(name, path, copy))
        return None


class _CopyLoader(SourceFileLoader):
    """Compiles the registered copy of a file under the file's own path.

    It uses no bytecode cache, which would keep the copy's code for the file.
    """

    def __init__(self, name: str, path: Path, copy: Path) -> None:
        super().__init__(name, str(path))
        self._copy = copy

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)

    def get_data(self, path: str) -> bytes:
        return self._copy.read_bytes()
