"""Finds what keeps an archive from running, before it is deployed; executes nothing of it.

Findings come in the order in which a server would come to them.
"""

import ast
import difflib
import importlib
import importlib.util
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from batching.errors import DependenciesFailed, ServeError
from batching.models.registration import (
    NOT_HERE,
    SERVER_TYPES,
    WITHOUT_EFFECT,
    ModelDefaults,
    ignored_values,
    spec_from_registration,
    why_not_here,
)
from batching.models.spec import DECODING_HANDLERS, ArchiveInfo
from workers.archives.model_archive import (
    BUILT_IN_PACKAGE,
    inspect_archive,
    split_handler,
    unpack_archive,
)
from workers.archives.model_files import read_requirements
from workers.machine import require_safe_torch, ts_folder

_OWN_LOADING = re.compile(r"\bdef (?:initialize|_load_\w+)\b")
# Finds in torch's page of text the class that it refuses.
_FOREIGN_CLASS = re.compile(r"Unsupported (?:global|class)\W+(?:GLOBAL )?([\w.]+)")
_PICKLES = (".pkl", ".pickle", ".joblib", ".dill")
_NOT_INSTALLED = (
    "install it on the nodes, or name it in a requirements.txt, with a --config that says "
    "install_py_dep_per_model=true"
)
# Statements that need not run when the file is loaded, or may fail without harm.
_MAY_FAIL = (ast.Try, ast.FunctionDef, ast.AsyncFunctionDef, ast.If)
# Key of model-config.yaml -> the type that counts. First the server's keys, then the handlers'.
_COUNTS: Mapping[str, type] = {
    **SERVER_TYPES,
    **dict.fromkeys(("handler", "micro_batching"), dict),
    **dict.fromkeys(("pt2", "dali", "deepspeed", "pippy"), object),
    **dict.fromkeys(("dtype", "jpeg_decoder"), str),
    "prepare": bool,
}


class Finding(NamedTuple):
    """Judges one part of the archive; a problem keeps it from running, and says what to do."""

    part: str
    verdict: Literal["ok", "note", "problem"]
    text: str


def ok(part: str, text: str) -> Finding:
    return Finding(part, "ok", text)


def note(part: str, text: str) -> Finding:
    return Finding(part, "note", text)


def problem(part: str, text: str) -> Finding:
    return Finding(part, "problem", text)


class Report(NamedTuple):
    archive: str
    model_name: str
    model_version: str
    findings: tuple[Finding, ...]

    @property
    def will_run(self) -> bool:
        return all(finding.verdict != "problem" for finding in self.findings)


def examine(path: Path, *, is_installing: bool = False, envelope: str = "") -> Report:
    """Unpacks the archive into a temporary folder and examines it.

    `is_installing` and `envelope` are the server's install_py_dep_per_model and service_envelope.
    """
    if str(ts_folder()) not in sys.path:
        sys.path.append(str(ts_folder()))  # as in a worker process, where handlers find `ts`
    try:
        with tempfile.TemporaryDirectory(prefix="ferry-doctor-") as folder:
            info = inspect_archive(path, path.name, Path(folder))
            unpacked = unpack_archive(path, info.sha256, Path(folder))
            findings = tuple(_Examination(info, unpacked, is_installing, envelope).run())
    except ServeError as error:
        cause = f" ({error.__cause__})" if isinstance(error.__cause__, OSError) else ""
        return Report(path.name, "", "", (problem("archive", f"{error.message}{cause}"),))
    return Report(path.name, info.model_name, info.model_version, findings)


class _Examination:
    def __init__(self, info: ArchiveInfo, folder: Path, is_installing: bool, envelope: str) -> None:
        self._info = info
        self._folder = folder
        self._is_installing = is_installing
        self._envelope = envelope
        self._model: dict[str, Any] = (info.manifest or {}).get("model") or {}
        root = folder.resolve()
        self._files = {
            file.relative_to(root).as_posix(): file for file in root.rglob("*") if file.is_file()
        }
        names = sorted(name for name in self._files if name.endswith(".py"))
        self._trees = {name: _parsed(name, self._files[name]) for name in names}
        self._handler, self._function = split_handler(info.handler)
        handler_dir = PurePosixPath(info.handler.partition(":")[0]).parent
        candidates = (f"{handler_dir / self._handler}.py", f"{self._handler}.py")
        # The file of the archive that Python imports as the handler.
        self._own_handler = next((name for name in candidates if name in self._files), None)

    def run(self) -> Iterator[Finding]:
        size_bytes = sum(file.stat().st_size for file in self._files.values())
        yield ok("archive", f"{len(self._files)} files, {size_bytes / 1024**2:.1f} MiB unpacked")
        yield from self._examine_manifest()
        yield from self._examine_requirements()
        try:
            require_safe_torch()
        except ImportError as error:
            yield problem("torch", str(error))
        unreadable = [tree for tree in self._trees.values() if isinstance(tree, Finding)]
        if self._info.handler in DECODING_HANDLERS:
            yield note("target", "`ferry serve`, or a registration, says whether it can be loaded")
            yield from [*unreadable, *self._missing_imports()]
        else:
            yield from unreadable
            yield from self._examine_handler()
            yield from self._examine_weights()
        for name in self._files:
            if name.endswith(_PICKLES):
                yield note("weights", f"{name} is a pickle: loading it runs what is in it")
        yield from _examine_config(self._info.config)

    def _examine_manifest(self) -> Iterator[Finding]:
        if self._info.manifest is None:
            yield note("manifest", "MAR-INF/MANIFEST.json is missing: register with handler=...")
        try:
            spec = spec_from_registration({}, self._info, ModelDefaults())
            yield ok("manifest", f"{spec.model_name} version {spec.model_version}")
        except ServeError as error:
            yield problem("manifest", error.message)
        for key in ("serializedFile", "modelFile", "requirementsFile"):
            name = self._model.get(key)
            if name and str(name) not in self._files:
                yield problem("manifest", f"{key} {name} is not in the archive")
        if self._model.get("envelope"):
            yield note("envelope", "the manifest's envelope has no effect: service_envelope counts")

    def _examine_requirements(self) -> Iterator[Finding]:
        name = str(self._model.get("requirementsFile") or "")
        if name not in self._files:
            return
        try:
            listed = ", ".join(read_requirements(self._folder, name).splitlines()) or "nothing"
        except DependenciesFailed as error:
            yield problem("requirements", error.message)
            return
        where = "is installed only where install_py_dep_per_model=true"
        is_note = note("requirements", f"{name} ({listed}) {where}")
        yield ok("requirements", f"{name} installs {listed}") if self._is_installing else is_note

    def _examine_handler(self) -> Iterator[Finding]:
        name, file = self._handler, self._own_handler
        if not self._info.handler:
            yield problem("handler", "the manifest names none: register with handler=...")
        elif file is None:
            module = f"{BUILT_IN_PACKAGE}.{name}"
            reason = _why_missing(module)
            if f"No module named '{module}'" in reason:
                yield problem("handler", f"{name} is neither a file of the archive nor built in")
            elif reason:
                yield problem("handler", f"the built-in handler {name}: {reason}")
            elif name == "base_handler" and self._envelope in ("", "body"):
                text = "does not decode requests: name tensor_model, or your own handler"
                yield problem("handler", f"base_handler {text}")
            else:
                yield ok("handler", f"{name} (built in)")
        elif isinstance(tree := self._trees[file], ast.Module):
            findings = list(self._missing_imports())
            classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
            if self._function not in _names_of(tree.body) and len(classes) != 1:
                text = (
                    f"{file} needs a function {self._function}(data, context), not async, or "
                    f"exactly one class; its classes: {', '.join(classes) or 'none'}"
                )
                findings.insert(0, problem("handler", text))
            yield from findings or [ok("handler", f"{file} and its imports")]

    def _missing_imports(self) -> Iterator[Finding]:
        paths = [PurePosixPath(name) for name in self._files]
        own = {name.removesuffix(".py") for path in paths for name in (path.parts[0], path.name)}
        for file, tree in self._trees.items():
            for module, names, line, is_optional in _imports(tree):
                imports, top = f"{file}, line {line}: imports", module.split(".")[0]
                if top == "ts":
                    for reason in filter(None, (_why_missing(module, name) for name in names)):
                        judge = note if is_optional else problem
                        yield judge("handler", f"{imports} {module}: {reason}")
                elif top not in own and not _is_installed(top):
                    brings = self._is_installing and self._model.get("requirementsFile")
                    advice = "perhaps requirements.txt brings it" if brings else _NOT_INSTALLED
                    judge = note if is_optional or brings else problem
                    missing = f"{top}, which is not installed here; {advice}"
                    yield judge("handler", f"{imports} {missing}")

    def _examine_weights(self) -> Iterator[Finding]:
        name = str(self._model.get("serializedFile") or "")
        has_model_file = bool(self._model.get("modelFile"))
        # By a built-in handler: itself, or as the base of another.
        is_loaded_by_us = self._own_handler is None
        if self._own_handler is not None:
            sources = {name: self._files[name].read_text(errors="replace") for name in self._trees}
            source = sources[self._own_handler]
            # A function as entry point counts as loading, as it need not call `initialize`.
            is_function = re.search(rf"^def {re.escape(self._function)}\b", source, re.MULTILINE)
            loads_itself = is_function or any(map(_OWN_LOADING.search, sources.values()))
            is_loaded_by_us = "ts.torch_handler" in source and not loads_itself
        if is_loaded_by_us and self._info.handler and not (name or has_model_file):
            text = f"{self._handler} loads a model, and neither weights nor a model file is named"
            yield problem("weights", text)
        if (file := self._files.get(name)) is None:
            return
        is_without_code = file.suffix in (".onnx", ".pt2", ".so") or _is_torchscript(file)
        if is_without_code and not has_model_file:
            return
        try:
            _check_checkpoint(file)
            yield ok("weights", f"{name} can be loaded")
        except ValueError as error:
            text = f"{error}{'' if has_model_file else ', or archive its class (--model-file)'}"
            yield problem("weights", text) if is_loaded_by_us else note("weights", text)


def _examine_config(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields a finding for each key of model-config.yaml without its effect in TorchServe."""
    part = "model-config"
    findings = []
    for key, value in config.items():
        if reason := why_not_here(key, value):
            findings.append(problem(part, reason))
        elif key in WITHOUT_EFFECT:
            findings.append(note(part, f"{key} has no effect: {WITHOUT_EFFECT[key]}"))
        elif key not in NOT_HERE and key not in _COUNTS:
            known = [*_COUNTS, *WITHOUT_EFFECT, *NOT_HERE]
            close = difflib.get_close_matches(key, known, 1, cutoff=0.75)
            suggestion = f"; did you mean {close[0]}?" if close else ""
            findings.append(
                note(part, f"{key} is unknown and only reaches the handler{suggestion}")
            )
    findings += [note(part, text) for text in ignored_values(config, _COUNTS)]
    yield from findings or ([ok(part, "all keys are known")] if config else [])


def _parsed(name: str, path: Path) -> ast.Module | Finding:
    """Returns the file's syntax tree, or what keeps Python from reading it."""
    try:
        return ast.parse(path.read_bytes(), name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f"{name}, line {line}" if line else name
        return problem("handler", f"{where}: not Python ({getattr(error, 'msg', error)})")


def _names_of(body: list[ast.stmt]) -> set[str]:
    """Returns the module's functions, except async ones, and the names it imports or assigns."""
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _imports(tree: ast.Module | Finding) -> Iterator[tuple[str, list[str], int, bool]]:
    """Yields module, names taken from it, line, and whether the file may load without it."""
    if isinstance(tree, Finding):
        return
    outer = (node for node in ast.walk(tree) if isinstance(node, _MAY_FAIL))
    optional = {inner for node in outer for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, [""], node.lineno, node in optional
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, [alias.name for alias in node.names], node.lineno, node in optional


def _why_missing(module: str, name: str = "") -> str:
    """Returns why a handler cannot import this from our `ts`; "" where it can. Imports it."""
    try:
        imported = importlib.import_module(module)
        if name and name != "*" and not hasattr(imported, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError as error:
        return f"it has no {name}" if error.name == f"{module}.{name}" else str(error)
    return ""


def _is_installed(module: str) -> bool:
    """Returns whether an import would find this top-level module; does not import it."""
    try:
        return module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # of a module that was not imported, as __main__
        return False


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as bundle:
        return any("/code/" in entry for entry in bundle.namelist())


def _check_checkpoint(path: Path) -> None:
    """Loads the file with `weights_only`, as BaseHandler does in a worker.

    Raises:
        ValueError: a worker could not load it.
    """
    torch = importlib.import_module("torch")
    try:
        torch.load(path, map_location="meta", weights_only=True)
    except Exception as error:
        if (foreign := _FOREIGN_CLASS.search(str(error))) is None:
            raise ValueError(f"{path.name} is no checkpoint that torch.load can read") from error
        raise ValueError(
            f"{path.name} holds more than weights ({foreign[1]}), and what unpickles it runs what "
            "is in it: save it with torch.save(model.state_dict())"
        ) from error
