"""Everything that can be said of an archive before it is deployed."""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from batching.errors import DependenciesFailed, ServeError
from batching.models.registration import ModelDefaults, spec_from_registration
from batching.models.spec import ArchiveInfo
from workers.archives.manifest import BUILT_IN_PACKAGE, split_handler
from workers.archives.model_archive import inspect_archive, unpack_archive
from workers.archives.requirements import read_requirements
from workers.doctor.config_examination import examine_config
from workers.doctor.findings import Finding, Verdict, note, ok, problem
from workers.doctor.source_examination import (
    Source,
    examine_entry,
    examine_imports,
    parse_source,
    top_level_modules,
)
from workers.doctor.ts_names import TsNames
from workers.doctor.weights_examination import examine_other_files, examine_weights
from workers.machine.torch_version import require_safe_torch

LARGE_BYTES = 1024**3
_REQUIREMENT_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_MIB = 1024**2
_OWN_LOADING = re.compile(r"\bdef (?:initialize|_load_\w+)\b")
_UNPICKLING = re.compile(r"weights_only|safe_globals", re.IGNORECASE)
_WITH_LABELS = ("image_classifier", "object_detector", "text_classifier")


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, in the order in which a server would come to it."""

    archive: str
    model_name: str
    model_version: str
    findings: tuple[Finding, ...]

    @property
    def will_run(self) -> bool:
        """Returns whether nothing was found that keeps the model from running."""
        return all(finding.verdict is not Verdict.PROBLEM for finding in self.findings)


def examine(path: Path, *, is_installing: bool = False) -> Report:
    """Returns the archive's prospects; it is unpacked into a temporary folder and not executed.

    Args:
        path: a .mar, a tar or tar.gz, or a folder.
        is_installing: the server will run with install_py_dep_per_model.
    """
    try:
        info = inspect_archive(path, path.name)
        with tempfile.TemporaryDirectory(prefix="ferry-doctor-") as folder:
            unpacked = unpack_archive(path, info.sha256, Path(folder))
            found = tuple(_Examination(info, unpacked, is_installing).run())
    except ServeError as error:
        text, cause = error.message, error.__cause__
        if cause is not None and str(cause) not in text:
            text = f"{text} ({cause})"
        return Report(path.name, "", "", (problem("archive", text),))
    return Report(path.name, info.model_name, info.model_version, found)


def _examine_torch() -> Iterator[Finding]:
    try:
        version = require_safe_torch()
    except ImportError as error:
        yield problem("torch", str(error))
    else:
        if version is not None:
            yield ok("torch", f"{version} is installed here")


class _Examination:
    """One archive in the folder that it was unpacked to."""

    def __init__(self, info: ArchiveInfo, folder: Path, is_installing: bool) -> None:
        self._info = info
        self._folder = folder
        self._is_installing = is_installing
        self._model: dict[str, Any] = (info.manifest or {}).get("model") or {}
        root = folder.resolve()
        self._files = {
            file.relative_to(root).as_posix(): file for file in root.rglob("*") if file.is_file()
        }
        self._ts_names = TsNames.read()

    def run(self) -> Iterator[Finding]:
        """Yields all findings."""
        yield from self._examine_layout()
        yield from self._examine_manifest()
        required, findings = self._read_requirements()
        yield from findings
        yield from _examine_torch()
        yield from self._examine_handler(required)
        yield from self._examine_weights()
        yield from examine_other_files(self._files)
        yield from examine_config(self._info.config)

    def _examine_layout(self) -> Iterator[Finding]:
        size_bytes = sum(file.stat().st_size for file in self._files.values())
        text = f"{len(self._files)} files, {size_bytes / _MIB:.1f} MiB unpacked"
        if size_bytes > LARGE_BYTES:
            yield note("archive", f"{text}: each worker holds its own copy of the model")
        else:
            yield ok("archive", text)

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

    def _read_requirements(self) -> tuple[frozenset[str], list[Finding]]:
        """Returns the names in requirements.txt, in lower case, and what is to be said of it."""
        name = str(self._model.get("requirementsFile") or "")
        if not name or name not in self._files:
            return frozenset(), []
        try:
            text = read_requirements(self._folder, name)
        except DependenciesFailed as error:
            return frozenset(), [problem("requirements", error.message)]
        names = [_REQUIREMENT_NAME.match(line.strip()) for line in text.splitlines()]
        required = frozenset(match[0].lower().replace("_", "-") for match in names if match)
        listed = ", ".join(sorted(required)) or "nothing"
        if self._is_installing:
            return required, [ok("requirements", f"{name} installs {listed}")]
        return required, [
            note(
                "requirements",
                f"{name} ({listed}) is installed only where install_py_dep_per_model=true",
            )
        ]

    def _examine_handler(self, required: frozenset[str]) -> Iterator[Finding]:
        if not self._info.handler:
            yield problem("handler", "the manifest names none: register with handler=...")
            return
        module_name, function_name = split_handler(self._info.handler)
        sources: dict[str, Source] = {}
        for name, path in sorted(self._files.items()):
            if name.endswith(".py"):
                parsed = parse_source(name, path)
                if isinstance(parsed, Finding):
                    yield parsed
                else:
                    sources[name] = parsed
        handler = self._find_module(module_name)
        if handler in sources:
            yield from self._examine_own_handler(sources, handler, function_name, required)
        elif handler is None:
            yield self._examine_built_in(module_name)

    def _examine_own_handler(
        self,
        sources: dict[str, Source],
        handler: str,
        function_name: str,
        required: frozenset[str],
    ) -> Iterator[Finding]:
        found = list(examine_entry(sources[handler], function_name))
        base_names = (PurePosixPath(name).name for name in self._files)
        mine = top_level_modules(self._files) | top_level_modules(base_names)
        for source in sources.values():
            found += examine_imports(
                source, mine, required, self._ts_names, is_installing=self._is_installing
            )
        yield from found
        if not found:
            yield ok("handler", f"{handler} and its imports")

    def _find_module(self, module_name: str) -> str | None:
        """Returns the file of the archive that Python imports under this name."""
        folder = PurePosixPath(self._info.handler.partition(":")[0]).parent
        for place in (folder / f"{module_name}.py", PurePosixPath(f"{module_name}.py")):
            if place.as_posix() in self._files:
                return place.as_posix()
        return None

    def _examine_built_in(self, name: str) -> Finding:
        module = f"{BUILT_IN_PACKAGE}.{name}"
        if reason := self._ts_names.why_missing(module):
            if module in self._ts_names.modules or "left out" in reason:
                return problem("handler", f"the built-in handler {name}: {reason}")
            return problem("handler", f"{name} is neither a file of the archive nor built in")
        if "index_to_name.json" not in self._files and name in _WITH_LABELS:
            return note(
                "handler", f"{name} (built in); without index_to_name.json labels are numbers"
            )
        return ok("handler", f"{name} (built in)")

    def _examine_weights(self) -> Iterator[Finding]:
        name = str(self._model.get("serializedFile") or "")
        module_name, function_name = split_handler(self._info.handler)
        handler = self._find_module(module_name)
        text = "" if handler is None else self._files[handler].read_text(errors="replace")
        is_loaded_by_us = handler is None or _leaves_loading_to_us(text, function_name)
        has_model = bool(name or self._model.get("modelFile")) or self._loads_elsewhere()
        if is_loaded_by_us and self._info.handler and not has_model:
            yield problem(
                "weights",
                f"{module_name} loads a model, and neither weights nor a model file is named",
            )
        if name not in self._files:
            return
        yield from examine_weights(
            self._files[name],
            has_model_file=bool(self._model.get("modelFile")),
            is_loaded_by_us=is_loaded_by_us,
            is_unpickling=not (is_loaded_by_us or _calls_plain_torch_load(text)),
        )

    def _loads_elsewhere(self) -> bool:
        """Returns whether another file of the archive, a base class say, has what loads a model."""
        sources = (file for name, file in self._files.items() if name.endswith(".py"))
        return any(_OWN_LOADING.search(file.read_text(errors="replace")) for file in sources)


def _leaves_loading_to_us(text: str, function_name: str) -> bool:
    """Returns whether a handler imports a built-in one and replaces none of what loads the model.

    A function that is the entry point need not call `initialize`.
    """
    own_entry = re.compile(rf"^def {re.escape(function_name)}\b", re.MULTILINE)
    return "ts.torch_handler" in text and not (own_entry.search(text) or _OWN_LOADING.search(text))


def _calls_plain_torch_load(text: str) -> bool:
    """Returns whether a handler reads checkpoints as torch does unless it is told otherwise."""
    return "torch.load(" in text and _UNPICKLING.search(text) is None
