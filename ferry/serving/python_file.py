"""Finds what a Python file serves, and with which settings, without running it."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batching.errors import BadRequest
from batching.models.config_keys import has_type
from batching.models.parameters import Parameter
from batching.models.spec import DEFAULT_VERSION, PARAMETERS
from ferry.modeling import NAMES, SETTINGS, nearest_setting
from ferry.serving.python_source import Module, TargetError, assignments, module_files, shown

_BASES = frozenset({"ferry.Model", "ferry.modeling.Model"})
_DECORATORS = frozenset({"ferry.model", "ferry.modeling.model"})
_FUNCTION = "predict"
# Those that are read here; `warm_up` is the worker's.
_TEXTS = ("name", "version")
_READ = frozenset({*SETTINGS, *_TEXTS})
# An attribute of a class whose name is this close to a setting's is taken for a slip.
_SIMILAR = 0.8

_Function = ast.FunctionDef | ast.AsyncFunctionDef
# Name -> where its value stands, and in which file.
_Values = dict[str, tuple[Module, ast.expr]]

_BY_NAME: Mapping[str, Parameter] = {
    name: one
    for one in PARAMETERS
    for name in (one.rest, one.name, one.name.removesuffix(f"_{one.name.rpartition('_')[2]}"))
    if name in SETTINGS
}
_KINDS = {int: "a whole number", str: "a text", bool: "True or False", list: "a list"}


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
    module = Module.read(path)
    found = list(_served(module))
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


def _served(module: Module) -> Iterator[ServedObject]:
    for statement in module.statements:
        if isinstance(statement, _Function):
            decorator = _decorator(module, statement)
            if decorator is not None or statement.name == _FUNCTION:
                _refuse_async(module, statement)
                values = {} if decorator is None else _keywords(module, decorator)
                yield _object(module, statement.name, values)
        elif isinstance(statement, ast.ClassDef) and _is_served(module, statement):
            values = {}
            for owner, ancestor in reversed(list(_ancestors(module, statement))):
                values.pop("name", None)  # of a base, which has its own
                values |= _attributes(owner, ancestor)
            yield _object(module, statement.name, values)
        elif _FUNCTION in _bound_names(statement):
            yield _object(module, _FUNCTION, {})


def _bound_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    return {name for name, _ in assignments([statement])}


def _decorator(module: Module, function: _Function) -> ast.expr | None:
    for decorator in function.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if module.dotted(called) in _DECORATORS:
            return decorator
    return None


def _refuse_async(module: Module, function: ast.stmt) -> None:
    if isinstance(function, ast.AsyncFunctionDef):
        raise module.error(
            function,
            f"{function.name} must not be async: the batch is the concurrency. Write `def`",
        )


def _is_served(module: Module, definition: ast.ClassDef) -> bool:
    """Returns whether the class is a model that can answer, and not only the base of others."""
    ancestors = list(_ancestors(module, definition))
    if not any(_is_base(owner, base) for owner, one in ancestors for base in one.bases):
        return False
    methods = [
        (owner, one)
        for owner, ancestor in ancestors
        for one in ancestor.body
        if isinstance(one, _Function) and one.name == _FUNCTION
    ]
    if methods:
        _refuse_async(*methods[0])
        return True
    others = (base for one in module.classes.values() for base in one.bases)
    if definition.name not in map(module.dotted, others):
        raise module.error(definition, f"class {definition.name} has no method {_FUNCTION}")
    return False


def _is_base(module: Module, base: ast.expr) -> bool:
    return module.dotted(base) in _BASES


def _ancestors(
    module: Module, definition: ast.ClassDef, seen: frozenset[str] = frozenset()
) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Yields the class and those of its bases that stand in this file or in one beside it."""
    yield module, definition
    for base in definition.bases:
        owner, _, name = module.dotted(base).rpartition(".")
        place = f"{owner}.{name}"
        there = _module_beside(module, owner) if owner else module
        if place not in seen and there is not None and name in there.classes:
            yield from _ancestors(there, there.classes[name], seen | {place})


def _module_beside(module: Module, name: str) -> Module | None:
    files = module_files(module.path.parent, name)
    return Module.read(files[-1]) if files else None


def _attributes(module: Module, definition: ast.ClassDef) -> _Values:
    found: _Values = {}
    for name, value in assignments(definition.body):
        if name in _READ:
            found[name] = (module, value)
        elif name in NAMES or name.startswith("_"):
            continue
        elif nearest := nearest_setting(name, _SIMILAR):
            raise module.error(value, f"{name} is no setting; did you mean {nearest}?")
    return found


def _keywords(module: Module, decorator: ast.expr) -> _Values:
    found: _Values = {}
    for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
        name = keyword.arg or "**"
        if name in _READ:
            found[name] = (module, keyword.value)
        elif name not in NAMES:
            nearest = nearest_setting(name, 0.0)
            raise module.error(keyword.value, f"{name} is no setting; did you mean {nearest}?")
    return found


def _object(module: Module, label: str, values: _Values) -> ServedObject:
    texts = {name: _text(name, *values.pop(name)) for name in _TEXTS if name in values}
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", module.path.stem)
    own_name = stem if label == _FUNCTION else _snake_case(label)
    return ServedObject(
        label,
        texts.get("name", own_name),
        texts.get("version", DEFAULT_VERSION),
        {_BY_NAME[name].word: _setting(name, *where) for name, where in values.items()},
    )


def _text(name: str, module: Module, expression: ast.expr) -> str:
    value = module.value(expression, name)
    if not isinstance(value, str):
        raise module.error(expression, f"{name} must be a text, not {value!r}")
    return value


def _setting(name: str, module: Module, expression: ast.expr) -> Any:
    value = module.value(expression, name)
    value = list(value) if isinstance(value, tuple) else value
    kind = _BY_NAME[name].kind
    if not has_type(value, kind):
        raise module.error(expression, f"{name} must be {_KINDS[kind]}, not {value!r}")
    try:
        _BY_NAME[name].check(value)
    except BadRequest as error:
        raise module.error(expression, error.message) from error
    return value


def _snake_case(name: str) -> str:
    """Returns `bert_qa` for BertQA and BertQa."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
