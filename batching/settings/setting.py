"""What a setting is called, which values it takes and what it is for: one place for each.

`Settings` declares its fields with `setting(...)`. Files, environments, flags and their help,
snapshots and the tables of docs/configuration.md go by that.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from batching.models.spec import MAX_INTEGER

_UNITS = {"s": "seconds", "bytes": "bytes"}
# Names of types in messages.
_KINDS: dict[type, str] = {int: "whole number", float: "number"}


class SettingsError(ValueError):
    """A setting cannot be used; the message names it and says what would work."""


class UnusableNow(SettingsError):
    """A setting cannot be used now, but may be a moment later."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Describes one field of `Settings`.

    Attributes:
        name: the field; the unit of a number is its end.
        kind: bool, int, float, str or Path.
        is_optional: whether an empty text means None.
        default: where no source says anything.
        doc: half a sentence for people.
        key: its name in config.properties: TorchServe's, if it has the setting.
        is_torchserves: whether it has.
        ts_variable: its variable `TS_...`; "" if there is none.
        variable: another program's variable that sets it, too.
        flag: a further spelling on command lines.
        section: of the help, which goes on to the next setting that names one.
        is_common: whether most starts name it, so that the help begins with it.
        is_saved: whether snapshots keep it; not what each start fills in, or a password.
        lowest: the least number allowed.
        choices: the words allowed, in any case; empty: any.
        check: is called with the value, and raises ValueError or re.error.
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

    def parse(self, source: str, text: str, *, is_strict: bool = True) -> Any:
        """Returns the text as a value.

        TorchServe reads every text but `true` as false. Of a setting of our own that would leave
        tokens off for an operator who wrote 1 or yes, so these are read strictly.

        Raises:
            SettingsError: the text has the wrong type; the message names its source.
        """
        if self.is_optional and text == "":
            return None
        if self.kind is bool:
            word = text.strip().lower()
            if is_strict and word not in ("true", "false", ""):
                raise SettingsError(f"{source}={text!r} is neither true nor false: {self.doc}")
            return word == "true"
        try:
            return self.kind(text.strip())
        except ValueError as error:
            raise SettingsError(
                f"{source}={text!r} is no {_KINDS[self.kind]}: {self.doc}"
            ) from error

    def check_value(self, value: Any) -> None:
        """Raises SettingsError if the setting cannot have this value."""
        if self.choices and value not in self.choices:
            known = ", ".join(filter(None, self.choices))
            raise SettingsError(f"{self.key}={value!r} is none of: {known}")
        # NaN is outside, too.
        if self.kind in (int, float) and not self.lowest <= value <= MAX_INTEGER:
            bounds = f"from {self.lowest} to {MAX_INTEGER}"
            raise SettingsError(f"{self.key} must be {bounds}, not {value}: {self.doc}")
        if self.check is not None and value:
            try:
                self.check(value)
            except (ValueError, re.error) as error:
                raise SettingsError(f"{self.key}: {error} ({self.doc})") from error


def setting(default: Any, doc: str, **facts: Any) -> Any:
    """Declares a field that is a setting of our own; `facts` are more attributes of `Setting`.

    Its key is its name without the unit, unless they say otherwise.
    """
    return field(default=default, metadata={"doc": doc, **facts})


def torchserve_setting(default: Any, doc: str, **facts: Any) -> Any:
    """Declares a setting that TorchServe has, whose way to read switches counts."""
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
