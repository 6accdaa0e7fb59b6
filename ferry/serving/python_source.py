"""Reads a Python file without running it, and finds the modules beside it that it imports."""

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import click


class TargetError(click.ClickException):
    """A target cannot be served; the text names file and line where there are any."""


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed file: its definitions, its plain constants, and what its names mean elsewhere."""

    path: Path
    statements: list[ast.stmt]
    # Name here -> dotted name that it was imported as.
    imported: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Module":
        """Parses the file.

        Raises:
            TargetError: it cannot be read, or is not Python.
        """
        found = cls(path, list(_top_level(parse(path).body)))
        for statement in found.statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                found.imported.update(_imported_names(statement))
            elif isinstance(statement, ast.ClassDef):
                found.classes[statement.name] = statement
        for name, value in assignments(found.statements):
            with contextlib.suppress(ValueError, TypeError):
                found.constants[name] = ast.literal_eval(value)
        return found

    def dotted(self, expression: ast.expr) -> str:
        """Returns the whole name that an expression means; "" if it is no name."""
        if isinstance(expression, ast.Name):
            return self.imported.get(expression.id, expression.id)
        if isinstance(expression, ast.Attribute) and (owner := self.dotted(expression.value)):
            return f"{owner}.{expression.attr}"
        return ""

    def value(self, expression: ast.expr, what: str) -> Any:
        """Returns a plain value: a literal, or a constant of this file.

        Raises:
            TargetError: it would take running the file to know it.
        """
        if isinstance(expression, ast.Name) and expression.id in self.constants:
            return self.constants[expression.id]
        try:
            return ast.literal_eval(expression)
        except (ValueError, TypeError):
            raise self.error(
                expression,
                f"{what} must be a plain value, or the name of a constant in this file, as it is "
                f"read without running the file; not {ast.unparse(expression)}",
            ) from None

    def error(self, node: ast.expr | ast.stmt | ast.keyword, text: str) -> TargetError:
        """Returns an error at this place."""
        return TargetError(f"{shown(self.path)}:{node.lineno}: {text}")


def parse(path: Path) -> ast.Module:
    """Parses a file.

    Raises:
        TargetError: it cannot be read, or is not Python.
    """
    try:
        return ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise TargetError(f"{shown(path)}: {error.strerror}") from error
    except SyntaxError as error:
        line = (error.text or "").rstrip()
        caret = " " * max(0, (error.offset or 1) - 1)
        code = f"\n    {line}\n    {caret}^" if line else ""
        raise TargetError(f"{shown(path)}:{error.lineno or 1}: {error.msg}{code}") from error
    except ValueError as error:  # a NUL in it
        raise TargetError(f"{shown(path)}: {error}") from error


def shown(path: Path) -> str:
    """Returns the path as a person near it writes it."""
    with contextlib.suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def assignments(statements: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yields the name and the value of each plain assignment."""
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, value


def sources_of(file: Path) -> dict[str, Path]:
    """Returns the file and the modules beside it that it imports, by their places beside it."""
    root = file.parent
    found = {file.name: file}
    unread = [file]
    while unread:
        for module in _imports(unread.pop(), root):
            for path in module_files(root, module):
                place = path.relative_to(root).as_posix()
                if place not in found:
                    found[place] = path
                    unread.append(path)
    return found


def module_files(root: Path, module: str) -> list[Path]:
    """Returns the files that importing this module from this folder runs, its own one last."""
    names = module.split(".")
    candidates = [root.joinpath(*names[:end], "__init__.py") for end in range(1, len(names) + 1)]
    candidates.append(root.joinpath(*names).with_name(f"{names[-1]}.py"))
    return [path for path in candidates if path.is_file()]


def _imports(path: Path, root: Path) -> Iterator[str]:
    """Yields the dotted name of each module, or of a name in it, that this file imports."""
    try:
        tree = parse(path)
    except TargetError:  # which whoever runs it says
        return
    package = PurePosixPath(path.relative_to(root).as_posix()).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield from filter(None, [module])
            yield from (".".join(filter(None, [module, alias.name])) for alias in node.names)


def _top_level(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements that importing a file may run, those under `if` and `try` too."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test):
            yield from _top_level(statement.orelse)
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from _top_level(handler.body)


def _imported_names(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            yield alias.asname or alias.name, f"{statement.module or ''}.{alias.name}"
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            top = alias.name.partition(".")[0]
            yield top, top
