"""Describes a setting: its names, values and purpose, from which much is derived (ADR 0020)."""

import dataclasses
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from batching.models.spec import MAX_INTEGER

_UNITS = {"s": "seconds", "bytes": "bytes"}


class SettingsError(ValueError):
    """A setting cannot be used; the message names it and says what would work."""


class UnusableNow(SettingsError):
    """A setting cannot be used now, but may be a moment later."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Describes one field of `Settings`.

    Attributes:
        name: the field; ends in the unit of a number.
        kind: bool, int, float, str or Path.
        is_optional: an empty text means None.
        default: where no source has a value.
        doc: half a sentence for people.
        key: its name in config.properties: TorchServe's, if it has the setting.
        is_torchserves: TorchServe has the setting.
        ts_variable: its variable `TS_...`; "" if there is none.
        variable: another program's variable that sets it, too.
        flag: a further spelling on command lines.
        section: of the help; also of the next settings, until another is named.
        is_common: most starts name it, so the help begins with it.
        is_saved: snapshots keep it; not a password, nor what each start fills in.
        lowest: the lowest number allowed.
        choices: the texts allowed, in any case; empty: any.
        check: called with the value; raises ValueError or re.error.
    """

    name: str
    kind: type
    is_optional: bool
    default: Any
    doc: str
    key: str
    is_torchserves: bool = False
    ts_variable: str = ""
    variable: str = ""
    flag: str = ""
    section: str = ""
    is_common: bool = False
    is_saved: bool = True
    lowest: float = 0
    choices: tuple[str, ...] = ()
    check: Callable[[Any], object] | None = None

    @property
    def unit(self) -> str:
        return _unit(self.name)

    def parse(self, source: str, text: str, *, as_torchserve: bool = False) -> Any:
        """Returns the text as a value; a SettingsError at the wrong type names the source.

        `as_torchserve` reads every text but `true` as false. For our own settings that would leave
        tokens off when an operator writes 1 or yes, so these are always read strictly.
        """
        if self.is_optional and text == "":
            return None
        if self.kind is bool:
            switch = text.strip().lower()
            is_strict = not (as_torchserve and self.is_torchserves)
            if is_strict and switch not in ("true", "false", ""):
                raise SettingsError(f"{source}={text!r} is neither true nor false: {self.doc}")
            return switch == "true"
        try:
            return self.kind(text.strip())
        except ValueError as error:
            kind = "whole number" if self.kind is int else "number"
            raise SettingsError(f"{source}={text!r} is not a {kind}: {self.doc}") from error

    def check_value(self, value: Any) -> None:
        """Raises SettingsError if the setting cannot have this value."""
        if self.choices and value not in self.choices:
            known = ", ".join(filter(None, self.choices))
            raise SettingsError(f"{self.key}={value!r} is not one of: {known}")
        # NaN is out of range, too.
        if self.kind in (int, float) and not self.lowest <= value <= MAX_INTEGER:
            bounds = f"from {self.lowest} to {MAX_INTEGER}"
            raise SettingsError(f"{self.key} must be {bounds}, not {value}: {self.doc}")
        if self.check is not None and value:
            try:
                self.check(value)
            except (ValueError, re.error) as error:
                raise SettingsError(f"{self.key}: {error} ({self.doc})") from error


def setting(default: Any, doc: str, **facts: Any) -> Any:
    """Declares a setting of our own; its key is its name without the unit, unless `facts` has one.

    `facts` are attributes of `Setting`.
    """
    return field(default=default, metadata={"doc": doc, **facts})


def torchserve_setting(default: Any, doc: str, **facts: Any) -> Any:
    """Declares a setting of TorchServe's; as a switch, it is read as TorchServe reads it."""
    return setting(default, doc, is_torchserves=True, **facts)


def settings_of(owner: type[Any]) -> tuple[Setting, ...]:
    settings = []
    section = ""
    for declared in dataclasses.fields(owner):
        kind: Any = declared.type
        if is_optional := isinstance(kind, types.UnionType):
            kind = next(it for it in typing.get_args(kind) if it is not type(None))
        name = declared.name
        key = declared.metadata.get("key", name.rpartition("_")[0] if _unit(name) else name)
        facts = {"key": key, "ts_variable": f"TS_{key.upper()}", "section": section}
        facts |= declared.metadata
        section = facts["section"]
        settings.append(Setting(name, kind, is_optional, declared.default, **facts))
    return tuple(settings)


def _unit(name: str) -> str:
    return _UNITS.get(name.rpartition("_")[2], "")
