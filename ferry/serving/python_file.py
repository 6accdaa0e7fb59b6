"""Reads a Python file without running it: what it serves, and which modules beside it it needs."""

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from batching.errors import BadRequest
from batching.models.config_keys import has_type
from batching.models.parameters import Parameter
from batching.models.spec import DEFAULT_VERSION, PARAMETERS
from ferry.modeling import NAMES, SETTINGS, nearest_setting

_BASES = ("ferry.Model", "ferry.modeling.Model")
_DECORATORS = ("ferry.model", "ferry.modeling.model")
_FUNCTION = "predict"
# An attribute of a class whose name is this close to a setting's is taken for a slip.
_SIMILAR = 0.8

_Function = ast.FunctionDef | ast.AsyncFunctionDef
# Name -> where its value stands, and in which file.
_Values = dict[str, tuple["_Module", ast.expr]]

_BY_NAME: Mapping[str, Parameter] = {
    name: one
    for one in PARAMETERS
    for name in (one.rest, one.name, one.name.removesuffix(f"_{one.name.rpartition('_')[2]}"))
    if name in SETTINGS
}
_KINDS = {int: "a whole number", str: "a text", bool: "True or False", list: "a list"}


class TargetError(click.ClickException):
    """A target cannot be served; the text names file and line where there are any."""


@dataclass(frozen=True, slots=True)
class ServedObject:
    """One model of a file: `label` is its name in the code, `settings` are archives' words."""

    label: str
    name: str
    version: str
    settings: Mapping[str, Any]


def read_python_file(path: Path, label: str = "") -> list[ServedObject]:
    """Returns what the file serves, or the one of that name in the code.

    Raises:
        TargetError: nothing, or it cannot be served so; the text has file and line.
    """
    found = list(_served(_Module(path)))
    if not found:
        raise TargetError(
            f"{shown(path)} serves nothing: it needs a function {_FUNCTION}(batch), a function "
            "under @ferry.model, or a class Name(ferry.Model)"
        )
    chosen = [one for one in found if label in ("", one.label)]
    if not chosen:
        there = ", ".join(one.label for one in found)
        raise TargetError(f"{shown(path)} serves no {label!r}; there is: {there}")
    return chosen


def sources_of(file: Path) -> dict[str, Path]:
    """Returns the file and the modules beside it that it imports, by their places beside it."""
    root, unread = file.parent, [file]
    found: dict[str, Path] = {}
    while unread:
        path = unread.pop()
        place = path.relative_to(root).as_posix()
        if place not in found:
            found[place] = path
            unread += [one for name in _imports(path, root) for one in _files_of(name, root)]
    return found


def shown(path: Path) -> str:
    with contextlib.suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


class _Module:
    """A parsed file, and what its names mean."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.statements = list(_top_level(_parse(path).body))
        self.assigned = dict(_assignments(self.statements))
        self.classes = {one.name: one for one in self.statements if isinstance(one, ast.ClassDef)}
        # Name here -> dotted name that it was imported as.
        self.imported: dict[str, str] = {}
        for one in self.statements:
            if isinstance(one, ast.Import | ast.ImportFrom):
                owner = f"{one.module}." if isinstance(one, ast.ImportFrom) else ""
                for alias in one.names:
                    if owner or alias.asname:
                        self.imported[alias.asname or alias.name] = f"{owner}{alias.name}"

    def dotted(self, expression: ast.expr) -> str:
        """Returns the whole name that an expression means; "" if it is no name."""
        if isinstance(expression, ast.Name):
            return self.imported.get(expression.id, expression.id)
        if isinstance(expression, ast.Attribute) and (owner := self.dotted(expression.value)):
            return f"{owner}.{expression.attr}"
        return ""

    def lineage(
        self, definition: ast.ClassDef, seen: frozenset[str] = frozenset()
    ) -> Iterator[tuple["_Module", ast.ClassDef]]:
        """Yields the class and those of its bases that stand in this file or in one beside it."""
        yield self, definition
        for base in map(self.dotted, definition.bases):
            owner, _, name = base.rpartition(".")
            files = _files_of(owner, self.path.parent) if owner else []
            there = _Module(files[-1]) if files else self
            if base not in seen and name in there.classes:
                yield from there.lineage(there.classes[name], seen | {base})

    def error(self, node: ast.expr | ast.stmt, text: str) -> TargetError:
        return TargetError(f"{shown(self.path)}:{node.lineno}: {text}")


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        caret = " " * max(0, (error.offset or 1) - 1)
        code = f"\n    {error.text.rstrip()}\n    {caret}^" if error.text else ""
        raise TargetError(f"{shown(path)}:{error.lineno or 1}: {error.msg}{code}") from error
    except (OSError, ValueError) as error:  # it has gone, or has a NUL
        raise TargetError(f"{shown(path)}: {error}") from error


def _top_level(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements that importing a file may run, those under `if` and `try` too."""
    for statement in statements:
        yield statement
        is_script = isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test)
        if isinstance(statement, ast.If | ast.Try | ast.With):
            yield from _top_level([] if is_script else statement.body)
            for part in ("orelse", "handlers", "finalbody"):
                yield from _top_level(getattr(statement, part, []))
        elif isinstance(statement, ast.ExceptHandler):
            yield from _top_level(statement.body)


def _assignments(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for one in statements:
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None:
            for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
                if isinstance(target, ast.Name):
                    yield target.id, one.value


def _imports(path: Path, root: Path) -> Iterator[str]:
    """Yields the dotted name of each module, or of a name in one, that this file imports."""
    try:
        tree = _parse(path)
    except TargetError:  # which whoever runs it says
        return
    package = path.relative_to(root).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def _files_of(module: str, root: Path) -> list[Path]:
    """Returns the files that importing this module from this folder runs, its own one last."""
    names = module.split(".")
    places = [root.joinpath(*names[:end]) for end in range(1, len(names) + 1)]
    candidates = [(one.with_name(f"{one.name}.py"), one / "__init__.py") for one in places]
    return [path for pair in candidates for path in pair if path.is_file()]


def _served(module: _Module) -> Iterator[ServedObject]:
    for statement in module.statements:
        if isinstance(statement, _Function):
            decorator = _decorator(module, statement)
            if decorator is not None or statement.name == _FUNCTION:
                _refuse_async(module, statement)
                keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
                pairs = [(keyword.arg or "**", keyword.value) for keyword in keywords]
                yield _object(module, statement.name, _settings(module, pairs, 0.0))
        elif isinstance(statement, ast.ClassDef) and _is_served(module, statement):
            values: _Values = {}
            for owner, ancestor in reversed(list(module.lineage(statement))):
                values.pop("name", None)  # of a base, which has its own
                values |= _settings(owner, _assignments(ancestor.body), _SIMILAR)
            yield _object(module, statement.name, values)
    if _FUNCTION in {*module.assigned, *module.imported}:
        yield _object(module, _FUNCTION, {})


def _decorator(module: _Module, function: _Function) -> ast.expr | None:
    for decorator in function.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if module.dotted(called) in _DECORATORS:
            return decorator
    return None


def _refuse_async(module: _Module, function: _Function) -> None:
    if isinstance(function, ast.AsyncFunctionDef):
        text = f"{function.name} must not be async: the batch is the concurrency. Write `def`"
        raise module.error(function, text)


def _is_served(module: _Module, definition: ast.ClassDef) -> bool:
    """Returns whether the class is a model that can answer, and not only the base of others."""
    lineage = list(module.lineage(definition))
    if not any(owner.dotted(base) in _BASES for owner, one in lineage for base in one.bases):
        return False
    for owner, ancestor in lineage:
        for one in ancestor.body:
            if isinstance(one, _Function) and one.name == _FUNCTION:
                _refuse_async(owner, one)
                return True
    bases = {module.dotted(base) for one in module.classes.values() for base in one.bases}
    if definition.name not in bases:
        raise module.error(definition, f"class {definition.name} has no method {_FUNCTION}")
    return False


def _settings(module: _Module, values: Iterable[tuple[str, ast.expr]], likeness: float) -> _Values:
    """Returns the settings among these; one whose name is as much like a setting's is refused."""
    found: _Values = {}
    for name, value in values:
        if name in SETTINGS | NAMES:
            found[name] = (module, value)
        elif not name.startswith("_") and (nearest := nearest_setting(name, likeness)):
            raise module.error(value, f"{name} is no setting; did you mean {nearest}?")
    found.pop("warm_up", None)  # which only the worker reads
    return found


def _object(module: _Module, label: str, where: _Values) -> ServedObject:
    values = {name: _plain_value(name, *place) for name, place in where.items()}
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", module.path.stem)
    # bert_qa for BertQA and BertQa.
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", label).lower()
    name = values.pop("name", stem if label == _FUNCTION else words)
    version = values.pop("version", DEFAULT_VERSION)
    settings = {_BY_NAME[name].word: value for name, value in values.items()}
    return ServedObject(label, name, version, settings)


def _plain_value(name: str, module: _Module, expression: ast.expr) -> Any:
    plain = expression
    if isinstance(expression, ast.Name):
        plain = module.assigned.get(expression.id, expression)
    try:
        value = ast.literal_eval(plain)
    except (ValueError, TypeError):
        text = (
            f"{name} must be a plain value, or the name of a constant in this file, as it is read "
            f"without running the file; not {ast.unparse(expression)}"
        )
        raise module.error(expression, text) from None
    value = list(value) if isinstance(value, tuple) else value
    parameter = _BY_NAME.get(name)  # none for `name` and `version`
    kind = parameter.kind if parameter else str
    if not has_type(value, kind):
        raise module.error(expression, f"{name} must be {_KINDS[kind]}, not {value!r}")
    try:
        if parameter:
            parameter.check(value)
    except BadRequest as error:
        raise module.error(expression, error.message) from error
    return value
