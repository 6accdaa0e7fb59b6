"""Reads what is to be served: a Python file, a file without code, an archive, or `hf:NAME`.

A Python file is read and not run.
"""

import ast
import contextlib
import difflib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from batching.errors import BadRequest
from batching.models.registration import has_type, name_of_archive
from batching.models.spec import DEFAULT_VERSION, NAME_PATTERN, PARAMETERS, VERSION_PATTERN
from workers.python_models.targets import HUGGING_FACE, SOURCES, Target

WITHOUT_CODE = frozenset({".onnx", ".pt", ".pts", ".pt2"})
# What `ferry serve` and `ferry archive` give a model in Python that says nothing itself.
DEFAULTS: Mapping[str, Any] = {
    "batchSize": 32,
    "maxBatchDelay": 10,
    "batchPolicy": "adaptive",
    "minWorkers": 1,
    "maxWorkers": 1,
}
CONFIG_FILE = "model-config.yaml"
MANIFEST_NAME = "MAR-INF/MANIFEST.json"

# By their fields' names and those of `POST /models`, which say no unit.
SETTINGS = {name: it for it in PARAMETERS for name in (it.name, re.sub(r"_m?s$", "", it.name))}
_NAMES = [*SETTINGS, "name", "version", "warm_up"]
_BASES = ("ferry.Model", "ferry.modeling.Model")
_DECORATORS = ("ferry.model", "ferry.modeling.model")
_FUNCTION = "predict"
# An attribute of a class whose name is this close to a setting's is taken for a slip.
_SIMILAR = 0.8


class TargetError(click.ClickException):
    """A target cannot be served; the text names file and line where there are any."""


@dataclass(frozen=True, slots=True)
class ServedTarget:
    """Describes one model to serve.

    Attributes:
        path: None for `hf:NAME`.
        label: what a Python file calls it; `NAME` of `hf:NAME`.
        settings: in the words of archives.
        sources: files to watch and to keep a copy of, by their places in an archive.
        is_archive: it is served as it is; its manifest may say another name.
    """

    name: str
    version: str
    path: Path | None
    label: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, Path] = field(default_factory=dict)
    is_archive: bool = False

    def fingerprint(self) -> str:
        files = [(place, path.stat()) for place, path in sorted(self.sources.items())]
        saved = [(place, status.st_mtime_ns, status.st_size) for place, status in files]
        return repr((self.label, sorted(self.settings.items()), saved))

    @property
    def is_without_code(self) -> bool:
        return self.path is not None and self.path.suffix in WITHOUT_CODE

    @property
    def handler(self) -> str:
        return "tensor_model" if self.is_without_code else "python_model"

    def text(self, file: str) -> str:
        """Returns the target as a manifest names it, with `file` as its file's name."""
        if self.path is None:
            return f"{HUGGING_FACE}{self.label}"
        return f"{file}:{self.label}" if self.label else file

    def config(self, more: Mapping[str, Any] | None = None) -> str:
        settings = {**DEFAULTS, **self.settings, **(more or {})}
        settings["maxWorkers"] = max(settings["minWorkers"], settings["maxWorkers"])
        return "".join(f"{word}: {json.dumps(value)}\n" for word, value in settings.items())

    def write_folder(self, folder: Path, version: str, settings: Mapping[str, Any]) -> None:
        """Writes an archive that points to the target and holds a copy of its code.

        A worker that starts later runs the code that was registered.
        """
        model = {
            "modelName": self.name,
            "modelVersion": version,
            "handler": self.handler,
            "target": self.text(str(self.path)),
            "configFile": CONFIG_FILE,
        }
        manifest = folder / MANIFEST_NAME
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"runtime": "python", "model": model}), encoding="utf-8")
        (folder / CONFIG_FILE).write_text(self.config(settings), encoding="utf-8")
        for place, path in self.sources.items():
            if path.suffix == ".py":
                copy = folder / SOURCES / place
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


def spec_fields(workers: int, device: str) -> dict[str, Any]:
    """Returns what these flags change in a registered version; 0 and "": nothing.

    Raises:
        TargetError: there is no such device.
    """
    fields: dict[str, Any] = {"min_worker": workers, "max_worker": workers} if workers else {}
    kind, colon, index = device.partition(":")
    if device in ("cpu", "mps"):  # to a node, Apple's GPU is none
        fields["device_type"] = "cpu"
    elif kind == "cuda" and (index.isdecimal() or not colon):
        fields |= {"device_type": "gpu", "device_ids": (int(index),) if index else ()}
    elif device:
        raise TargetError(f"--device {device}: write cpu, cuda, cuda:1 or mps")
    return fields


def read_targets(arguments: Sequence[str]) -> list[ServedTarget]:
    """Returns the models of all these targets.

    Raises:
        TargetError: one cannot be served, or two have one name.
    """
    targets = [target for argument in arguments for target in read_target(argument)]
    [(name, count)] = Counter(target.name for target in targets).most_common(1)
    if count > 1:
        raise TargetError(
            f'{count} models are called {name}: give one of them another name, with name = "..."'
        )
    return targets


def read_target(text: str) -> list[ServedTarget]:
    """Returns the models of one target.

    Raises:
        TargetError: there is no such target, or it serves nothing; the text says why.
    """
    target = Target.of(text, Path.cwd())
    path = target.path
    if path is None:
        if not target.name:
            raise TargetError("hf: needs a name behind it, as in hf:sentiment-analysis")
        folder = Path(target.name)
        label = str(folder.absolute()) if folder.is_dir() else target.name
        return [ServedTarget(_as_name(folder.name), DEFAULT_VERSION, None, label)]
    if not path.exists():
        raise TargetError(f"there is no file {_shown(path)}")
    if path.suffix == ".py":
        return _FileReader(path).chosen(target.name)
    if path.suffix in WITHOUT_CODE:
        # Weights of an ONNX file may lie beside it.
        files = [path, path.with_name(f"{path.name}.data")]
        sources = {file.name: file for file in files if file.is_file()}
        return [ServedTarget(_as_name(path.stem), DEFAULT_VERSION, path, sources=sources)]
    if path.is_dir() or path.name.endswith((".mar", ".tar.gz", ".tgz")):
        return [ServedTarget(name_of_archive(path.name), "", path, is_archive=True)]
    raise TargetError(
        f"{_shown(path)} cannot be served. These can: FILE.py, FILE.py:NAME, .onnx, .pt2, "
        ".pt (TorchScript), .mar, a folder of an archive, or hf:NAME"
    )


def _shown(path: Path) -> str:
    with contextlib.suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _as_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text) or "model"


# --- Python files


class _FileReader:
    """Finds the models of a Python file, in the order in which Python would run it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # The file and the modules that it imports from its folder: place there -> path.
        self._sources: dict[str, Path] = {}
        unread = [path]
        while unread:
            file = unread.pop()
            place = file.relative_to(path.parent).as_posix()
            if place not in self._sources:
                self._sources[place] = file
                with contextlib.suppress(TargetError):  # running it reports the error
                    unread += _imported_files(file, path.parent)
        self._statements = list(_top_level(_parse(path)))
        # Name -> what it is assigned, or the dotted name that it was imported as.
        self._assigned = dict(_assignments(self._statements))
        self._imported: dict[str, str] = {}
        # Class of a model -> its settings, its bases' included, and whether it can answer.
        self._classes: dict[str, tuple[dict[str, Any], bool]] = {}

    def chosen(self, label: str) -> list[ServedTarget]:
        """Returns the models that the file serves; with a label, only the model of that name."""
        served = list(self._served())
        if not served:
            raise TargetError(
                f"{_shown(self._path)} serves nothing: it needs a function {_FUNCTION}(batch), a "
                f"function under @ferry.model, or a class Name(ferry.Model) with a method "
                f"{_FUNCTION}"
            )
        if chosen := [target for target in served if label in ("", target.label)]:
            return chosen
        labels = ", ".join(target.label for target in served)
        raise TargetError(f"{_shown(self._path)} has no model {label!r}; it has: {labels}")

    def _served(self) -> Iterator[ServedTarget]:
        for statement in self._statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                owner = f"{statement.module}." if isinstance(statement, ast.ImportFrom) else ""
                aliases = [alias for alias in statement.names if owner or alias.asname]
                self._imported |= {it.asname or it.name: f"{owner}{it.name}" for it in aliases}
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                marks = [it for it in statement.decorator_list if self._dotted(it) in _DECORATORS]
                if marks or statement.name == _FUNCTION:
                    calls = [mark for mark in marks if isinstance(mark, ast.Call)]
                    pairs = [(it.arg or "**", it.value) for call in calls for it in call.keywords]
                    yield self._object(statement.name, self._settings(pairs, 0.0))
            elif isinstance(statement, ast.ClassDef):
                yield from self._class(statement)
        if _FUNCTION in {*self._assigned, *self._imported}:
            yield self._object(_FUNCTION, {})

    def _class(self, definition: ast.ClassDef) -> Iterator[ServedTarget]:
        bases = [self._dotted(base) for base in definition.bases]
        above = [self._classes[base] for base in reversed(bases) if base in self._classes]
        if above or set(bases) & set(_BASES):
            inherited = ((name, value) for given, _ in above for name, value in given.items())
            settings = {name: value for name, value in inherited if name != "name"}
            settings |= self._settings(_assignments(definition.body), _SIMILAR)
            methods = {getattr(statement, "name", "") for statement in definition.body}
            can_answer = _FUNCTION in methods or any(can_answer for _, can_answer in above)
            self._classes[definition.name] = settings, can_answer
            if can_answer:
                yield self._object(definition.name, settings)

    def _dotted(self, expression: ast.expr) -> str:
        """Returns the dotted name that an expression, or its callee, stands for; "" if none."""
        if isinstance(expression, ast.Call):
            return self._dotted(expression.func)
        if isinstance(expression, ast.Name):
            return self._imported.get(expression.id, expression.id)
        if isinstance(expression, ast.Attribute) and (owner := self._dotted(expression.value)):
            return f"{owner}.{expression.attr}"
        return ""

    def _settings(self, pairs: Iterable[tuple[str, ast.expr]], likeness: float) -> dict[str, Any]:
        """Returns the settings among these pairs; refuses a name that is this close to a setting's.

        Only the worker reads `warm_up`.
        """
        settings = {}
        for name, expression in pairs:
            if name in _NAMES:
                if name != "warm_up":
                    settings[name] = self._value(name, expression)
            elif not name.startswith("_"):
                for nearest in difflib.get_close_matches(name, _NAMES, 1, likeness):
                    complaint = f"{name} is not a setting; did you mean {nearest}?"
                    raise self._error(expression, complaint)
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
            complaint = (
                f"{name} must be a plain value, or the name of a constant in this file, as it is "
                f"read without running the file; not {ast.unparse(expression)}"
            )
            raise self._error(expression, complaint) from None
        return value

    def _object(self, label: str, values: Mapping[str, Any]) -> ServedTarget:
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", self._path.stem)
        # bert_qa for BertQA and BertQa.
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", label).lower()
        name = values.get("name", stem if label == _FUNCTION else snake)
        version = values.get("version", DEFAULT_VERSION)
        for text, pattern in ((name, NAME_PATTERN), (version, VERSION_PATTERN)):
            if not pattern.fullmatch(text):
                raise TargetError(
                    f"{_shown(self._path)}: {text!r} cannot be the name or version of a model: use "
                    "letters, digits, '.', '_' and '-', beginning with a letter, digit or '_'"
                )
        settings = {SETTINGS[key].word: value for key, value in values.items() if key in SETTINGS}
        return ServedTarget(name, version, self._path, label, settings, self._sources)

    def _error(self, node: ast.expr, text: str) -> TargetError:
        return TargetError(f"{_shown(self._path)}:{node.lineno}: {text}")


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        caret = " " * max(0, (error.offset or 1) - 1)
        code = f"\n    {error.text.rstrip()}\n    {caret}^" if error.text else ""
        raise TargetError(f"{_shown(path)}:{error.lineno or 1}: {error.msg}{code}") from error
    except (OSError, ValueError) as error:  # it has gone, or has a NUL
        raise TargetError(f"{_shown(path)}: {error}") from error


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
    """Yields the files below `root` that run when this file imports its modules."""
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
