"""Keeps `import torchvision` from loading torch's compiler, which few models need.

One of its modules takes one function from `torch._dynamo.utils`, and calls it only on GPUs that
must be deterministic. Dynamo and sympy come with it: they take as long to import as torch itself,
and some 100 MB in each worker.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

_IMPORTER = "torchvision.ops.roi_align"
_COMPILER = "torch._dynamo.utils"


def defer_compiler() -> None:
    """Makes later imports of torchvision leave the compiler out, until it is first used."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _Finder:
    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == _IMPORTER else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


_FINDER = _Finder()


class _Loader(SourceFileLoader):
    """Runs the module while the compiler's name stands for a module that loads it late."""

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
