"""Python files of an archive, parsed and never executed: entry points and imports."""

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from workers.doctor.findings import Finding, note, problem
from workers.doctor.ts_names import TsNames

# Importable in every worker, whatever is installed beside.
_TS = "ts"
_ASYNCHRONOUS = "is a coroutine: handlers that answer out of order are left out"


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file; `name` is relative to the archive."""

    name: str
    tree: ast.Module

    def functions(self) -> set[str]:
        """Returns the functions that the module has, its own and imported names alike."""
        names = {node.name for node in self.tree.body if isinstance(node, ast.FunctionDef)}
        for node in self.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Assign):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        return names

    def classes(self) -> list[ast.ClassDef]:
        """Returns the classes that the module itself defines."""
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]


def parse_source(name: str, path: Path) -> Source | Finding:
    """Returns the file, or what keeps Python from reading it."""
    try:
        return Source(name, ast.parse(path.read_bytes(), name))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        place = f"{name}, line {line}" if line else name
        return problem("handler", f"{place}: not Python ({getattr(error, 'msg', error)})")


def examine_entry(source: Source, function_name: str) -> Iterator[Finding]:
    """Yields what is missing for the module to be a handler."""
    if function_name in source.functions():
        yield from _examine_call(source, source.tree, function_name, "data, context")
        return
    if function_name in _coroutines(source.tree):
        yield problem("handler", f"{source.name}: {function_name} {_ASYNCHRONOUS}")
        return
    classes = source.classes()
    if len(classes) != 1:
        names = ", ".join(node.name for node in classes) or "none"
        yield problem(
            "handler",
            f"{source.name} needs a function {function_name}(data, context) or exactly one class; "
            f"its classes: {names}",
        )
        return
    (only,) = classes
    if "handle" in _coroutines(only):
        yield problem("handler", f"{source.name}: {only.name}.handle {_ASYNCHRONOUS}")
        return
    methods = {node.name for node in only.body if isinstance(node, ast.FunctionDef)}
    missing = sorted({"initialize", "handle"} - methods)
    if missing and not only.bases:
        yield problem("handler", f"{source.name}: class {only.name} lacks {' and '.join(missing)}")
    yield from _examine_call(source, only, "initialize", "context")
    yield from _examine_call(source, only, "handle", "data, context")


def _examine_call(
    source: Source, owner: ast.Module | ast.ClassDef, name: str, arguments: str
) -> Iterator[Finding]:
    """Yields whether the function that it itself defines can be called as a worker calls it."""
    count = arguments.count(",") + 1 + isinstance(owner, ast.ClassDef)
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and node.name == name and not _takes(node, count):
            place = f"{source.name}, line {node.lineno}"
            yield problem("handler", f"{place}: {name} is called with ({arguments})")


def _takes(function: ast.FunctionDef, count: int) -> bool:
    """Returns whether it can be called with so many arguments; a decorator may change that."""
    taken = function.args
    most = len(taken.posonlyargs) + len(taken.args)
    fits = most - len(taken.defaults) <= count and (taken.vararg is not None or count <= most)
    return bool(function.decorator_list) or (fits and None not in taken.kw_defaults)


def _coroutines(node: ast.Module | ast.ClassDef) -> set[str]:
    return {child.name for child in node.body if isinstance(child, ast.AsyncFunctionDef)}


def examine_imports(
    source: Source,
    own_modules: frozenset[str],
    required: frozenset[str],
    ts_names: TsNames,
    *,
    is_installing: bool,
) -> Iterator[Finding]:
    """Imports that will fail.

    Args:
        source: a file of the archive.
        own_modules: top-level modules that the archive brings along.
        required: names in its requirements.txt, in lower case.
        ts_names: what `ts` has here.
        is_installing: the server installs requirements.txt.
    """
    for module, names, line, is_optional in _imports(source.tree):
        place = f"{source.name}, line {line}"
        top = module.split(".")[0]
        if top == _TS:
            for reason in filter(None, (ts_names.why_missing(module, name) for name in names)):
                text = f"{place}: imports {module}: {reason}"
                yield note("handler", text) if is_optional else problem("handler", text)
        elif top not in own_modules and not _is_installed(top):
            reason, may_load = _not_installed(top, required, is_installing=is_installing)
            if is_optional:
                reason, may_load = "the import may fail without harm, or later", True
            text = f"{place}: imports {top}, which is not installed here; {reason}"
            yield note("handler", text) if may_load else problem("handler", text)


def _not_installed(
    module: str, required: frozenset[str], *, is_installing: bool
) -> tuple[str, bool]:
    """Returns what is to be said of a missing module, and whether it may be there on a node."""
    if not required:
        return "install it on the nodes or add a requirements.txt", False
    is_named = module.lower().replace("_", "-") in required
    source = "requirements.txt names it" if is_named else "perhaps requirements.txt brings it"
    if is_installing:
        return source, True
    advice = "install it on the nodes, or give --config with install_py_dep_per_model=true"
    return f"{source}: {advice}", False


def _imports(tree: ast.Module) -> Iterator[tuple[str, list[str], int, bool]]:
    """Module, names taken from it, line, and whether the module may load although it fails."""
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, is_optional = stack.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, [""], node.lineno, is_optional
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, [alias.name for alias in node.names], node.lineno, is_optional
        may_fail = isinstance(node, ast.Try | ast.FunctionDef | ast.AsyncFunctionDef | ast.If)
        children = reversed(list(ast.iter_child_nodes(node)))
        stack += [(child, is_optional or may_fail) for child in children]


def _is_installed(module: str) -> bool:
    """Returns whether an import would find it.

    A top-level name is looked up without importing it.
    """
    if module in sys.builtin_module_names or module in sys.stdlib_module_names:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def top_level_modules(names: Iterable[str]) -> frozenset[str]:
    """Returns the top-level modules that files of an archive with these names are."""
    return frozenset(name.split("/")[0].removesuffix(".py") for name in names)
