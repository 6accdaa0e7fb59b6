"""Which names of TorchServe's `ts` package handlers find here, read from its source files."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import ts
from ts.left_out import LEFT_OUT


@dataclass(frozen=True, slots=True)
class TsNames:
    """Modules of `ts` with the names they have."""

    modules: Mapping[str, frozenset[str]]

    @classmethod
    def read(cls) -> Self:
        """Returns the names in this installation."""
        root = Path(ts.__file__).parent
        trees = {_module_name(path, root): _parse(path) for path in sorted(root.rglob("*.py"))}
        return cls({name: frozenset(_names(tree)) for name, tree in trees.items()})

    def why_missing(self, module: str, name: str = "") -> str:
        """Why this import fails, in words; empty when it works."""
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            parent = ".".join(parts[:end])
            if parent in LEFT_OUT:
                return f"it is left out: {LEFT_OUT[parent]}"
        if module not in self.modules:
            return "there is no such module in TorchServe 0.12's handler API as it is served here"
        if not name or name == "*" or name in self.modules[module]:
            return ""
        return self.why_missing(f"{module}.{name}") and f"{module} has no {name}"


def _module_name(path: Path, root: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _names(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names += [(alias.asname or alias.name).split(".")[0] for alias in node.names]
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return names
