"""The registry's record of one model: its versions and which of them is the default."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from batching.errors import ModelNotFound, VersionNotFound
from batching.models.spec import NAME_PATTERN, VERSION_PATTERN, ModelSpec


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """All versions of one model. `others` is what only a later version of this program knows."""

    default_version: str
    versions: Mapping[str, ModelSpec]
    others: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def to_json(self) -> str:
        """One line of JSON for the registry."""
        versions = {name: spec.to_record() for name, spec in self.versions.items()}
        record = {**self.others, "default": self.default_version, "versions": versions}
        # A date in model-config.yaml is a date to YAML and has no JSON: it becomes its text.
        return json.dumps(record, default=str)

    @classmethod
    def from_json(cls, text: str | bytes) -> "ModelEntry":
        """Returns the entry that `to_json` wrote.

        Raises:
            ValueError, TypeError, LookupError, AttributeError: nobody wrote this with it.
        """
        record = json.loads(text)
        specs = record.pop("versions")
        versions = {name: ModelSpec.from_record(spec) for name, spec in specs.items()}
        default = record.pop("default")
        if default not in versions:
            raise ValueError("its default version is none of its versions")
        return cls(default, versions, others=record)

    def with_spec(self, spec: ModelSpec) -> "ModelEntry":
        """Returns the entry with this version added or replaced."""
        return replace(self, versions={**self.versions, spec.model_version: spec})

    def completed_by(self, newer: "ModelEntry | None") -> "ModelEntry":
        """Returns the newer entry with the versions that only this one has.

        This one if there is none.
        """
        if newer is None:
            return self
        return replace(newer, versions={**self.versions, **newer.versions})

    def without(self, model_version: str) -> "ModelEntry | None":
        """Returns the entry without this version; None when it was the last one.

        Without its default version, the one that was registered first of the others is.
        """
        rest = {name: spec for name, spec in self.versions.items() if name != model_version}
        if not rest:
            return None
        is_default = model_version == self.default_version
        default_version = next(iter(rest)) if is_default else self.default_version
        return replace(self, default_version=default_version, versions=rest)


def specs_of(entries: Iterable[ModelEntry]) -> list[ModelSpec]:
    """Returns all versions of all these models."""
    return [spec for entry in entries for spec in entry.versions.values()]


def pick_version(entry: ModelEntry | None, model_name: str, model_version: str | None) -> ModelSpec:
    """Returns the asked version of this entry, or its default.

    Raises:
        ModelNotFound: there is no entry.
        VersionNotFound: it has no such version.
    """
    known = existing(entry, model_name)
    version = known.default_version if model_version is None else model_version
    if version not in known.versions:
        raise no_version(model_name, version)
    return known.versions[version]


def existing(entry: ModelEntry | None, model_name: str) -> ModelEntry:
    """Returns the entry.

    Raises:
        ModelNotFound: there is none.
    """
    if entry is None:
        raise _no_model(model_name)
    return entry


def check_names(model_name: str, model_version: str | None = None) -> None:
    """A model and its version can be called this.

    Raises:
        ModelNotFound, VersionNotFound: none can be called that, so no key is built from it.
    """
    if not NAME_PATTERN.fullmatch(model_name):
        raise _no_model(model_name)
    if model_version is not None and not VERSION_PATTERN.fullmatch(model_version):
        raise no_version(model_name, model_version)


def _no_model(model_name: str) -> ModelNotFound:
    return ModelNotFound(f"Model not found: {model_name}")


def no_version(model_name: str, model_version: str) -> VersionNotFound:
    """Returns the error for a version that this model does not have."""
    return VersionNotFound(f"Model version: {model_version} does not exist for model: {model_name}")


def still_registered(entry: ModelEntry | None, spec: ModelSpec) -> ModelSpec:
    """This registration, as it is scaled now.

    Raises:
        VersionNotFound: it is gone; another one may have taken over its name.
    """
    current = entry.versions.get(spec.model_version) if entry else None
    if current is None or not current.is_same_registration(spec):
        raise VersionNotFound(
            f"Model version: {spec.model_version} of model: {spec.model_name} was unregistered "
            "meanwhile"
        )
    return current
