"""Reads a Python file without running it: what it serves, and which modules beside it it needs."""

import ast
import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from batching.errors import BadRequest
from batching.models.config_keys import has_type
from batching.models.spec import DEFAULT_VERSION, NAME_PATTERN, PARAMETERS, VERSION_PATTERN

# By their fields' names and those of `POST /models`, which say no unit.
SETTINGS = {name: one for one in PARAMETERS for name in (one.name, re.sub(r"_m?s$", "", one.name))}
_OTHER_NAMES = ("name", "version", "warm_up")
_BASES = ("ferry.Model", "ferry.modeling.Model")
_DECORATORS = ("ferry.model", "ferry.modeling.model")
_FUNCTION = "predict"
# An attribute of a class whose name is this close to a setting's is taken for a slip.
_SIMILAR = 0.8


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
    served = list(_Reader(path).served())
    if not served:
        raise TargetError(
            f"{shown(path)} serves nothing: it needs a function {_FUNCTION}(batch), a function "
            f"under @ferry.model, or a class Name(ferry.Model) with a method {_FUNCTION}"
        )
    chosen = [one for one in served if label in ("", one.label)]
    if not chosen:
        labels = ", ".join(one.label for one in served)
        raise TargetError(f"{shown(path)} serves no {label!r}; there is: {labels}")
    return chosen


def sources_of(file: Path) -> dict[str, Path]:
    """Returns the file and the modules beside it that it imports, by their places beside it."""
    root, unread = file.parent, [file]
    sources: dict[str, Path] = {}
    while unread:
        path = unread.pop()
        place = path.relative_to(root).as_posix()
        if place not in sources:
            sources[place] = path
            with contextlib.suppress(TargetError):  # which whoever runs it says
                unread += _imported_files(path, root)
    return sources


def shown(path: Path) -> str:
    with contextlib.suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


class _Reader:
    """Goes through a parsed file in the order in which Python would run it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._statements = list(_top_level(_parse(path)))
        # Name -> what it is assigned, or the dotted name that it was imported as.
        self._assigned = dict(_assignments(self._statements))
        self._imported: dict[str, str] = {}
        # Class of a model -> its settings, its bases' included, and whether it can answer.
        self._classes: dict[str, tuple[dict[str, Any], bool]] = {}

    def served(self) -> Iterator[ServedObject]:
        for statement in self._statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                owner = f"{statement.module}." if isinstance(statement, ast.ImportFrom) else ""
                aliases = [alias for alias in statement.names if owner or alias.asname]
                self._imported |= {it.asname or it.name: f"{owner}{it.name}" for it in aliases}
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._function(statement)
            elif isinstance(statement, ast.ClassDef):
                yield from self._class(statement)
        if _FUNCTION in {*self._assigned, *self._imported}:
            yield self._object(_FUNCTION, {})

    def _function(
        self, definition: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> Iterator[ServedObject]:
        marks = [it for it in definition.decorator_list if self._dotted(it) in _DECORATORS]
        if marks or definition.name == _FUNCTION:
            calls = [mark for mark in marks if isinstance(mark, ast.Call)]
            pairs = [(it.arg or "**", it.value) for call in calls for it in call.keywords]
            yield self._object(definition.name, self._settings(pairs, 0.0))

    def _class(self, definition: ast.ClassDef) -> Iterator[ServedObject]:
        bases = [self._dotted(base) for base in definition.bases]
        above = [self._classes[base] for base in reversed(bases) if base in self._classes]
        if above or set(bases) & set(_BASES):
            settings: dict[str, Any] = {}
            for inherited, _ in above:
                settings |= inherited
            settings.pop("name", None)  # of a base, which has its own
            settings |= self._settings(_assignments(definition.body), _SIMILAR)
            methods = {getattr(statement, "name", "") for statement in definition.body}
            can_answer = _FUNCTION in methods or any(can_answer for _, can_answer in above)
            self._classes[definition.name] = settings, can_answer
            if can_answer:
                yield self._object(definition.name, settings)

    def _dotted(self, expression: ast.expr) -> str:
        """Returns the whole name that an expression, or what it calls, means; "" if it is none."""
        if isinstance(expression, ast.Call):
            return self._dotted(expression.func)
        if isinstance(expression, ast.Name):
            return self._imported.get(expression.id, expression.id)
        if isinstance(expression, ast.Attribute) and (owner := self._dotted(expression.value)):
            return f"{owner}.{expression.attr}"
        return ""

    def _settings(self, pairs: Iterable[tuple[str, ast.expr]], likeness: float) -> dict[str, Any]:
        """Returns the settings among these; one whose name is as much like a setting's is refused.

        `warm_up` is read by the worker alone.
        """
        names, settings = [*SETTINGS, *_OTHER_NAMES], {}
        for name, expression in pairs:
            if name in names:
                if name != "warm_up":
                    settings[name] = self._value(name, expression)
            elif not name.startswith("_"):
                for nearest in difflib.get_close_matches(name, names, 1, likeness):
                    text = f"{name} is no setting; did you mean {nearest}?"
                    raise self._error(expression, text)
        return settings

    def _value(self, name: str, expression: ast.expr) -> Any:
        plain = expression
        if isinstance(expression, ast.Name):
            plain = self._assigned.get(expression.id, expression)
        parameter = SETTINGS.get(name)
        kind = parameter.kind if parameter else str
        try:
            value = ast.literal_eval(plain)
            value = list(value) if isinstance(value, tuple) else value
            if not has_type(value, kind):
                raise self._error(expression, f"{name} must be {kind.__name__}, not {value!r}")
            if parameter:
                parameter.check(value)
        except BadRequest as error:
            raise self._error(expression, error.message) from error
        except (ValueError, TypeError):
            text = (
                f"{name} must be a plain value, or the name of a constant in this file, as it is "
                f"read without running the file; not {ast.unparse(expression)}"
            )
            raise self._error(expression, text) from None
        return value

    def _object(self, label: str, values: Mapping[str, Any]) -> ServedObject:
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", self._path.stem)
        # bert_qa for BertQA and BertQa.
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", label).lower()
        name = values.get("name", stem if label == _FUNCTION else words)
        version = values.get("version", DEFAULT_VERSION)
        for text, pattern in ((name, NAME_PATTERN), (version, VERSION_PATTERN)):
            if not pattern.fullmatch(text):
                raise TargetError(
                    f"{shown(self._path)}: {text!r} can be no name or version of a model: use "
                    "letters, digits, '.', '_' and '-', beginning with a letter, digit or '_'"
                )
        settings = {SETTINGS[key].word: value for key, value in values.items() if key in SETTINGS}
        return ServedObject(label, name, version, settings)

    def _error(self, node: ast.expr, text: str) -> TargetError:
        return TargetError(f"{shown(self._path)}:{node.lineno}: {text}")


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        caret = " " * max(0, (error.offset or 1) - 1)
        code = f"\n    {error.text.rstrip()}\n    {caret}^" if error.text else ""
        raise TargetError(f"{shown(path)}:{error.lineno or 1}: {error.msg}{code}") from error
    except (OSError, ValueError) as error:  # it has gone, or has a NUL
        raise TargetError(f"{shown(path)}: {error}") from error


def _top_level(block: ast.AST) -> Iterator[ast.AST]:
    """Yields what importing a file may run, statements under `if` and `try` too."""
    for node in ast.iter_child_nodes(block):
        yield node
        is_script = isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not is_definition and not is_script:
            yield from _top_level(node)


def _assignments(statements: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for statement in statements:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, statement.value


def _imported_files(path: Path, root: Path) -> Iterator[Path]:
    """Yields the files below `root` that run when this one imports its modules."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(_parse(path)):
        modules: list[list[str]] = []
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            owner = [*above, *(node.module or "").split(".")]
            modules = [[*filter(None, owner), alias.name] for alias in node.names]
        for names in modules:
            for end in range(1, len(names) + 1):
                place = root.joinpath(*names[:end])
                candidates = (place.with_name(f"{place.name}.py"), place / "__init__.py")
                yield from (file for file in candidates if file.is_file())
