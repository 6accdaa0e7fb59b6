"""Python files of an archive, parsed and never executed: entry points and imports."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workers.doctor.findings import Finding, note, problem

_ASYNCHRONOUS = "is a coroutine: handlers that answer out of order are left out"


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file; `name` is relative to the archive."""

    name: str
    tree: ast.Module


@dataclass(frozen=True, slots=True)
class Available:
    """What an archive can import beside what is installed here.

    `own` are its top-level modules, `required` the names in its requirements.txt, in lower case.
    """

    own: frozenset[str]
    required: frozenset[str]
    is_installing: bool


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
    body = source.tree.body
    if function_name in names_of(body):
        return
    if function_name in _coroutines(body):
        yield problem("handler", f"{source.name}: {function_name} {_ASYNCHRONOUS}")
        return
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    if len(classes) != 1:
        names = ", ".join(node.name for node in classes) or "none"
        yield problem(
            "handler",
            f"{source.name} needs a function {function_name}(data, context) or exactly one class; "
            f"its classes: {names}",
        )
        return
    (only,) = classes
    if "handle" in _coroutines(only.body):
        yield problem("handler", f"{source.name}: {only.name}.handle {_ASYNCHRONOUS}")
    elif missing := sorted(
        {"initialize", "handle"} - names_of(only.body) if not only.bases else ()
    ):
        yield problem("handler", f"{source.name}: class {only.name} lacks {' and '.join(missing)}")


def examine_imports(source: Source, available: Available) -> Iterator[Finding]:
    """Yields the imports that will fail."""
    for module, names, line, is_optional in _imports(source.tree):
        place = f"{source.name}, line {line}"
        top = module.split(".")[0]
        if top == "ts":
            for reason in filter(None, (why_missing(module, name) for name in names)):
                text = f"{place}: imports {module}: {reason}"
                yield note("handler", text) if is_optional else problem("handler", text)
        elif top not in available.own and not _is_installed(top):
            reason, may_load = _not_installed(top, available)
            if is_optional:
                reason, may_load = "the import may fail without harm, or later", True
            text = f"{place}: imports {top}, which is not installed here; {reason}"
            yield note("handler", text) if may_load else problem("handler", text)


def why_missing(module: str, name: str = "") -> str:
    """Returns why a handler cannot import this from `ts`; empty where it can.

    Imports it: the package is ours, and no part of the archive.
    """
    try:
        found = importlib.import_module(module)
        if name and name != "*" and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError as error:
        is_other = isinstance(error, ModuleNotFoundError) and error.name == f"{module}.{name}"
        return f"it has no {name}" if is_other else str(error)
    return ""


def names_of(body: list[ast.stmt]) -> set[str]:
    """Returns the functions of a module or class; names that it imports or assigns count, too."""
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _coroutines(body: list[ast.stmt]) -> set[str]:
    return {node.name for node in body if isinstance(node, ast.AsyncFunctionDef)}


def _not_installed(module: str, available: Available) -> tuple[str, bool]:
    """Returns what to say of a missing module, and whether a node may have it all the same."""
    if not available.required:
        return "install it on the nodes or add a requirements.txt", False
    is_named = module.lower().replace("_", "-") in available.required
    source = "requirements.txt names it" if is_named else "perhaps requirements.txt brings it"
    if available.is_installing:
        return source, True
    advice = "install it on the nodes, or give --config with install_py_dep_per_model=true"
    return f"{source}: {advice}", False


def _imports(tree: ast.Module) -> Iterator[tuple[str, list[str], int, bool]]:
    """Yields module, names taken from it, line, and whether the file may load without it."""
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
    """Returns whether an import would find this top-level module; does not import it."""
    try:
        return module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
