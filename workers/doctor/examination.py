"""What can be said of an archive before it is deployed; nothing of it is executed."""

import ast
import difflib
import importlib
import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from batching.errors import DependenciesFailed, ServeError
from batching.models.config_keys import (
    NOT_HERE,
    SERVER_TYPES,
    WITHOUT_EFFECT,
    ignored_values,
    why_not_here,
)
from batching.models.registration import ModelDefaults, spec_from_registration
from batching.models.spec import DECODING_HANDLERS, ArchiveInfo
from workers.archives.installer import read_requirements
from workers.archives.model_archive import (
    BUILT_IN_PACKAGE,
    inspect_archive,
    split_handler,
    unpack_archive,
)
from workers.doctor.judged_files import (
    Finding,
    coroutines_of,
    examine_target,
    examine_weights,
    names_of,
    note,
    ok,
    parsed,
    problem,
)
from workers.machine import require_safe_torch

_REQUIREMENT_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*", re.MULTILINE)
_OWN_LOADING = re.compile(r"\bdef (?:initialize|_load_\w+)\b")
_PICKLES = (".pkl", ".pickle", ".joblib", ".dill")
_ASYNCHRONOUS = "is a coroutine: handlers that answer out of order are left out"
# Key of model-config.yaml -> the type that counts. First the server's keys, then those that
# handlers read.
_COUNTS: Mapping[str, type] = {
    **SERVER_TYPES,
    **dict.fromkeys(("handler", "micro_batching"), dict),
    **dict.fromkeys(("pt2", "dali", "deepspeed", "pippy"), object),
    **dict.fromkeys(("dtype", "jpeg_decoder"), str),
    "prepare": bool,
}


@dataclass(frozen=True, slots=True)
class Report:
    """Collects findings, in the order in which a server would come to them."""

    archive: str
    model_name: str
    model_version: str
    findings: tuple[Finding, ...]

    @property
    def will_run(self) -> bool:
        return all(finding.verdict != "problem" for finding in self.findings)


def examine(path: Path, *, is_installing: bool = False, envelope: str = "") -> Report:
    """Unpacks the archive into a temporary folder and examines it.

    Args:
        path: a .mar, a tar or tar.gz, or a folder.
        is_installing: the server will run with install_py_dep_per_model.
        envelope: its service_envelope.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="ferry-doctor-") as folder:
            info = inspect_archive(path, path.name, Path(folder))
            unpacked = unpack_archive(path, info.sha256, Path(folder))
            findings = tuple(_Examination(info, unpacked, is_installing, envelope).run())
    except ServeError as error:
        text, cause = error.message, error.__cause__
        if cause is not None and str(cause) not in text:
            text = f"{text} ({cause})"
        return Report(path.name, "", "", (problem("archive", text),))
    return Report(path.name, info.model_name, info.model_version, findings)


class _Examination:
    """One archive in the folder that it was unpacked to."""

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
        # Names in requirements.txt, in lower case.
        self._required: frozenset[str] = frozenset()
        self._handler, self._function = split_handler(info.handler)

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
            target = examine_target(self._model, self._folder)
            yield from dict.fromkeys([target, *unreadable, *self._examine_imports()])
        else:
            yield from unreadable
            yield from self._examine_handler()
            yield from self._examine_weights()
        for name in self._files:
            if name.endswith(_PICKLES):
                text = f"{name} is a pickle: a handler that loads it runs what is in it"
                yield note("weights", text)
        yield from self._examine_config()

    def _examine_manifest(self) -> Iterator[Finding]:
        if self._info.manifest is None:
            yield note(
                "manifest",
                "MAR-INF/MANIFEST.json is missing: register with handler=..., and built-in "
                "handlers will not work",
            )
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
            text = read_requirements(self._folder, name)
        except DependenciesFailed as error:
            yield problem("requirements", error.message)
            return
        names = _REQUIREMENT_NAME.findall(text)
        self._required = frozenset(it.lower().replace("_", "-") for it in names)
        listed = ", ".join(sorted(self._required)) or "nothing"
        if self._is_installing:
            yield ok("requirements", f"{name} installs {listed}")
        else:
            where = "is installed only where install_py_dep_per_model=true"
            yield note("requirements", f"{name} ({listed}) {where}")

    @cached_property
    def _trees(self) -> Mapping[str, ast.Module | Finding]:
        names = sorted(name for name in self._files if name.endswith(".py"))
        return {name: parsed(name, self._files[name]) for name in names}

    def _own_handler(self) -> str | None:
        """Returns the file of the archive that Python imports as the handler."""
        folder = PurePosixPath(self._info.handler.partition(":")[0]).parent
        names = (f"{folder / self._handler}.py", f"{self._handler}.py")
        return next((name for name in names if name in self._files), None)

    def _examine_handler(self) -> Iterator[Finding]:
        if not self._info.handler:
            yield problem("handler", "the manifest names none: register with handler=...")
        elif (handler := self._own_handler()) is None:
            yield self._examine_built_in(self._handler)
        elif isinstance(tree := self._trees[handler], ast.Module):
            entry = _missing_entry(handler, tree.body, self._function)
            problems = [problem("handler", entry)] if entry else []
            findings = [*problems, *self._examine_imports()]
            yield from findings or [ok("handler", f"{handler} and its imports")]

    def _examine_built_in(self, name: str) -> Finding:
        module = f"{BUILT_IN_PACKAGE}.{name}"
        reason = _why_missing(module)
        if not reason and name == "base_handler" and self._envelope in ("", "body"):
            return problem(
                "handler",
                "base_handler does not decode requests, and would fail on each: name tensor_model, "
                "or a handler of your own",
            )
        if not reason:
            return ok("handler", f"{name} (built in)")
        if f"No module named '{module}'" in reason:
            return problem("handler", f"{name} is neither a file of the archive nor built in")
        return problem("handler", f"the built-in handler {name}: {reason}")

    def _examine_imports(self) -> Iterator[Finding]:
        """Yields the imports that will fail."""
        paths = [PurePosixPath(name) for name in self._files]
        own = {name.removesuffix(".py") for path in paths for name in (path.parts[0], path.name)}
        for file, tree in self._trees.items():
            for module, names, line, is_optional in _imports(tree):
                where, top = f"{file}, line {line}", module.split(".")[0]
                if top == "ts":
                    for reason in filter(None, (_why_missing(module, name) for name in names)):
                        text = f"{where}: imports {module}: {reason}"
                        yield (note if is_optional else problem)("handler", text)
                elif top not in own and not _is_installed(top):
                    reason, may_load = self._not_installed(top)
                    if is_optional:
                        reason, may_load = "the import may fail without harm, or later", True
                    text = f"{where}: imports {top}, which is not installed here; {reason}"
                    yield (note if may_load else problem)("handler", text)

    def _not_installed(self, module: str) -> tuple[str, bool]:
        """Returns what to say of a missing module, and whether a node may have it all the same."""
        if not self._required:
            return "install it on the nodes or add a requirements.txt", False
        is_named = module.lower().replace("_", "-") in self._required
        source = "requirements.txt names it" if is_named else "perhaps requirements.txt brings it"
        if self._is_installing:
            return source, True
        advice = "install it on the nodes, or give --config with install_py_dep_per_model=true"
        return f"{source}: {advice}", False

    def _examine_weights(self) -> Iterator[Finding]:
        name = str(self._model.get("serializedFile") or "")
        is_loaded_by_us = self._leaves_loading_to_us()
        has_model_file = bool(self._model.get("modelFile"))
        if is_loaded_by_us and self._info.handler and not (name or has_model_file):
            text = f"{self._handler} loads a model, and neither weights nor a model file is named"
            yield problem("weights", text)
        if name in self._files:
            yield examine_weights(
                self._files[name], has_model_file=has_model_file, is_loaded_by_us=is_loaded_by_us
            )

    def _leaves_loading_to_us(self) -> bool:
        """Returns whether the handler is built in, or extends one that is and loads nothing itself.

        A function that is the entry point need not call `initialize`.
        """
        handler = self._own_handler()
        if handler is None:
            return True
        sources = {name: self._files[name].read_text(errors="replace") for name in self._trees}
        own_entry = re.compile(rf"^def {re.escape(self._function)}\b", re.MULTILINE)
        loads_itself = own_entry.search(sources[handler]) or any(
            map(_OWN_LOADING.search, sources.values())
        )
        return "ts.torch_handler" in sources[handler] and not loads_itself

    def _examine_config(self) -> Iterator[Finding]:
        """Yields a finding for each key of model-config.yaml that will not do what it says."""
        part, config = "model-config", self._info.config
        findings = []
        for key, value in ((str(key), value) for key, value in config.items()):
            if reason := why_not_here(key, value):
                findings.append(problem(part, reason))
            elif key in WITHOUT_EFFECT:
                findings.append(note(part, f"{key} has no effect: {WITHOUT_EFFECT[key]}"))
            elif key not in NOT_HERE and key not in _COUNTS:
                known = [*_COUNTS, *WITHOUT_EFFECT, *NOT_HERE]
                close = difflib.get_close_matches(key, known, 1, cutoff=0.75)
                suggestion = f"; did you mean {close[0]}?" if close else ""
                text = f"{key} is unknown and only reaches the handler{suggestion}"
                findings.append(note(part, text))
        findings += [note(part, text) for text in ignored_values(config, _COUNTS)]
        if config and not findings:
            findings = [ok(part, "all keys are known")]
        yield from findings


def _missing_entry(name: str, body: list[ast.stmt], function: str) -> str:
    """Returns what is missing for the module to be a handler."""
    if function in names_of(body):
        return ""
    if function in coroutines_of(body):
        return f"{name}: {function} {_ASYNCHRONOUS}"
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    if len(classes) != 1:
        names = ", ".join(node.name for node in classes) or "none"
        return (
            f"{name} needs a function {function}(data, context) or exactly one class; "
            f"its classes: {names}"
        )
    (only,) = classes
    if "handle" in coroutines_of(only.body):
        return f"{name}: {only.name}.handle {_ASYNCHRONOUS}"
    missing = {"initialize", "handle"} - names_of(only.body)
    if missing and not only.bases:
        return f"{name}: class {only.name} lacks {' and '.join(sorted(missing))}"
    return ""


def _imports(tree: ast.Module | Finding) -> Iterator[tuple[str, list[str], int, bool]]:
    """Yields module, names taken from it, line, and whether the file may load without it."""
    stack: list[tuple[ast.AST, bool]] = [(tree, False)] if isinstance(tree, ast.Module) else []
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


def _why_missing(module: str, name: str = "") -> str:
    """Returns why a handler cannot import this from `ts`; empty where it can.

    Imports it: the package is ours, and no part of the archive.
    """
    try:
        imported = importlib.import_module(module)
        if name and name != "*" and not hasattr(imported, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError as error:
        is_other = isinstance(error, ModuleNotFoundError) and error.name == f"{module}.{name}"
        return f"it has no {name}" if is_other else str(error)
    return ""


def _is_installed(module: str) -> bool:
    """Returns whether an import would find this top-level module; does not import it."""
    try:
        return module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
