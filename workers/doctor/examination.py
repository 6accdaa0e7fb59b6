"""What can be said of an archive before it is deployed."""

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from batching.errors import DependenciesFailed, ServeError
from batching.models.registration import ModelDefaults, spec_from_registration
from batching.models.spec import DECODING_HANDLERS, ArchiveInfo
from workers.archives.installer import read_requirements
from workers.archives.model_archive import (
    BUILT_IN_PACKAGE,
    inspect_archive,
    split_handler,
    unpack_archive,
)
from workers.doctor.config_examination import examine_config
from workers.doctor.findings import Finding, Verdict, note, ok, problem
from workers.doctor.source_examination import (
    Available,
    Source,
    examine_entry,
    examine_imports,
    parse_source,
    why_missing,
)
from workers.doctor.target_examination import examine_target
from workers.doctor.weights_examination import examine_other_files, examine_weights
from workers.machine import require_safe_torch

_REQUIREMENT_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_OWN_LOADING = re.compile(r"\bdef (?:initialize|_load_\w+)\b")


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


def examine(path: Path, *, is_installing: bool = False, envelope: str = "") -> Report:
    """Unpacks the archive into a temporary folder and examines it; executes nothing of it.

    Args:
        path: a .mar, a tar or tar.gz, or a folder.
        is_installing: the server will run with install_py_dep_per_model.
        envelope: its service_envelope.
    """
    try:
        info = inspect_archive(path, path.name)
        with tempfile.TemporaryDirectory(prefix="ferry-doctor-") as folder:
            unpacked = unpack_archive(path, info.sha256, Path(folder))
            found = tuple(_Examination(info, unpacked, is_installing, envelope).run())
    except ServeError as error:
        text, cause = error.message, error.__cause__
        if cause is not None and str(cause) not in text:
            text = f"{text} ({cause})"
        return Report(path.name, "", "", (problem("archive", text),))
    return Report(path.name, info.model_name, info.model_version, found)


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
        self._required: frozenset[str] = frozenset()
        self._handler, self._function = split_handler(info.handler)

    def run(self) -> Iterator[Finding]:
        """Yields all findings."""
        size_bytes = sum(file.stat().st_size for file in self._files.values())
        yield ok("archive", f"{len(self._files)} files, {size_bytes / 1024**2:.1f} MiB unpacked")
        yield from self._examine_manifest()
        yield from self._examine_requirements()
        yield from _examine_torch()
        if self._info.handler in DECODING_HANDLERS:
            found = [*examine_target(self._model, self._folder), *self._unreadable()]
            found += self._examine_imports()
            yield from dict.fromkeys(found)
        else:
            yield from self._examine_handler()
            yield from self._examine_weights()
        yield from examine_other_files(self._files)
        yield from examine_config(self._info.config)

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
        if not name or name not in self._files:
            return
        try:
            text = read_requirements(self._folder, name)
        except DependenciesFailed as error:
            yield problem("requirements", error.message)
            return
        names = [_REQUIREMENT_NAME.match(line.strip()) for line in text.splitlines()]
        self._required = frozenset(match[0].lower().replace("_", "-") for match in names if match)
        listed = ", ".join(sorted(self._required)) or "nothing"
        if self._is_installing:
            yield ok("requirements", f"{name} installs {listed}")
        else:
            where = "is installed only where install_py_dep_per_model=true"
            yield note("requirements", f"{name} ({listed}) {where}")

    def _examine_handler(self) -> Iterator[Finding]:
        if not self._info.handler:
            yield problem("handler", "the manifest names none: register with handler=...")
            return
        yield from self._unreadable()
        handler = self._own_handler()
        if handler is None:
            yield self._examine_built_in(self._handler)
        elif isinstance(source := self._parsed[handler], Source):
            found = [*examine_entry(source, self._function), *self._examine_imports()]
            yield from found or [ok("handler", f"{handler} and its imports")]

    @cached_property
    def _parsed(self) -> Mapping[str, Source | Finding]:
        return {name: parse_source(name, self._files[name]) for name in self._python_files()}

    def _unreadable(self) -> list[Finding]:
        return [one for one in self._parsed.values() if isinstance(one, Finding)]

    def _examine_imports(self) -> Iterator[Finding]:
        for source in self._parsed.values():
            if isinstance(source, Source):
                yield from examine_imports(source, self._available())

    def _python_files(self) -> list[str]:
        return sorted(name for name in self._files if name.endswith(".py"))

    def _own_handler(self) -> str | None:
        """Returns the file of the archive that Python imports as the handler."""
        folder = PurePosixPath(self._info.handler.partition(":")[0]).parent
        for place in (folder / f"{self._handler}.py", PurePosixPath(f"{self._handler}.py")):
            if place.as_posix() in self._files:
                return place.as_posix()
        return None

    def _available(self) -> Available:
        paths = [PurePosixPath(name) for name in self._files]
        own = {name.removesuffix(".py") for path in paths for name in (path.parts[0], path.name)}
        return Available(frozenset(own), self._required, self._is_installing)

    def _examine_built_in(self, name: str) -> Finding:
        module = f"{BUILT_IN_PACKAGE}.{name}"
        reason = why_missing(module)
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

    def _examine_weights(self) -> Iterator[Finding]:
        name = str(self._model.get("serializedFile") or "")
        is_loaded_by_us = self._leaves_loading_to_us()
        has_model = bool(name or self._model.get("modelFile"))
        if is_loaded_by_us and self._info.handler and not has_model:
            text = f"{self._handler} loads a model, and neither weights nor a model file is named"
            yield problem("weights", text)
        if name in self._files:
            yield examine_weights(
                self._files[name],
                has_model_file=bool(self._model.get("modelFile")),
                is_loaded_by_us=is_loaded_by_us,
            )

    def _leaves_loading_to_us(self) -> bool:
        """Returns whether the handler is built in, or extends one that is and loads nothing itself.

        A function that is the entry point need not call `initialize`.
        """
        handler = self._own_handler()
        if handler is None:
            return True
        texts = {
            name: self._files[name].read_text(errors="replace") for name in self._python_files()
        }
        own_entry = re.compile(rf"^def {re.escape(self._function)}\b", re.MULTILINE)
        loads_itself = own_entry.search(texts[handler]) or any(
            map(_OWN_LOADING.search, texts.values())
        )
        return "ts.torch_handler" in texts[handler] and not loads_itself


def _examine_torch() -> Iterator[Finding]:
    try:
        require_safe_torch()
    except ImportError as error:
        yield problem("torch", str(error))
