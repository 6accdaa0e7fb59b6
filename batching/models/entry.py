"""Defines the registry's record of one model: its versions, and which of them is the default."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from batching.errors import Conflict, ModelNotFound, VersionNotFound
from batching.models.spec import NAME_PATTERN, VERSION_PATTERN, ModelSpec


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """Holds all versions of one model; `others` has fields of a later release."""

    default_version: str
    versions: Mapping[str, ModelSpec]
    others: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def to_json(self) -> str:
        versions = {name: spec.to_record() for name, spec in self.versions.items()}
        record = {**self.others, "default": self.default_version, "versions": versions}
        # YAML reads dates in model-config.yaml as dates, which have no JSON: they become text.
        return json.dumps(record, default=str)

    @classmethod
    def from_json(cls, text: str | bytes) -> "ModelEntry":
        """Parses the output of `to_json`.

        Raises:
            ValueError, TypeError, LookupError, AttributeError: the text is something else.
        """
        record = json.loads(text)
        default, specs = record.pop("default"), record.pop("versions")
        if default not in specs:
            raise ValueError("the default version is not one of the versions")
        versions = {name: ModelSpec.from_record(spec) for name, spec in specs.items()}
        return cls(default, versions, others=record)

    def with_spec(self, spec: ModelSpec) -> "ModelEntry":
        return replace(self, versions={**self.versions, spec.model_version: spec})

    def registering(self, spec: ModelSpec) -> "ModelEntry":
        """Returns the entry with a new version, which may replace one that was not loaded.

        A version that was not loaded stays the default only if an operator made it the default.

        Raises:
            Conflict: this version is registered already.
        """
        if (former := self.versions.get(spec.model_version)) and not former.load_error:
            raise Conflict(
                f"Model version {spec.model_version} is already registered for model "
                f"{spec.model_name}"
            )
        default = self.versions[self.default_version]
        is_stopgap = default.load_error and not default.saved_as
        entry = self.with_spec(spec)
        return replace(entry, default_version=spec.model_version) if is_stopgap else entry

    def completed_by(self, newer: "ModelEntry | None") -> "ModelEntry":
        """Returns the newer entry, if any, with the versions added that only this entry has."""
        if newer is None:
            return self
        return replace(newer, versions={**self.versions, **newer.versions})

    def without(self, model_version: str) -> "ModelEntry | None":
        """Returns the entry without this version; None when it was the last one.

        If it was the default version, the oldest of the others becomes the default.
        """
        rest = {name: spec for name, spec in self.versions.items() if name != model_version}
        if not rest:
            return None
        is_default = model_version == self.default_version
        default_version = next(iter(rest)) if is_default else self.default_version
        return replace(self, default_version=default_version, versions=rest)


def specs_of(entries: Iterable[ModelEntry]) -> list[ModelSpec]:
    return [spec for entry in entries for spec in entry.versions.values()]


def pick_version(entry: ModelEntry | None, model_name: str, model_version: str | None) -> ModelSpec:
    """Returns the requested version of this entry, or its default.

    Raises:
        ModelNotFound, VersionNotFound: there is no entry, or it has no such version.
    """
    known = existing(entry, model_name)
    version = known.default_version if model_version is None else model_version
    if version not in known.versions:
        raise no_version(model_name, version)
    return known.versions[version]


def existing(entry: ModelEntry | None, model_name: str) -> ModelEntry:
    """Returns the entry, or raises ModelNotFound if it is None."""
    if entry is None:
        raise ModelNotFound(f"Model not found: {model_name}")
    return entry


def check_names(model_name: str, model_version: str | None = None) -> None:
    """Raises ModelNotFound or VersionNotFound for names that none can have, and no key may."""
    if not NAME_PATTERN.fullmatch(model_name):
        raise ModelNotFound(f"Model not found: {model_name}")
    if model_version is not None and not VERSION_PATTERN.fullmatch(model_version):
        raise no_version(model_name, model_version)


def no_version(model_name: str, model_version: str) -> VersionNotFound:
    return VersionNotFound(f"Model version: {model_version} does not exist for model: {model_name}")


def still_registered(entry: ModelEntry | None, spec: ModelSpec) -> ModelSpec:
    """Returns this registration with its current number of workers.

    It raises VersionNotFound if it is gone; another registration may have its name.
    """
    current = entry.versions.get(spec.model_version) if entry else None
    if current is None or not current.is_same_registration(spec):
        raise VersionNotFound(
            f"Model version: {spec.model_version} of model: {spec.model_name} was unregistered "
            "meanwhile"
        )
    return current
