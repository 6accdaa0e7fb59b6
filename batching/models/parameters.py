"""What a model parameter is called, and which values it takes: one place for each.

`ModelSpec` declares its parameters with `parameter(...)`. Registration, config.properties,
snapshots, describe, OpenAPI, `ferry models register` and docs/configuration.md go by that.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from batching.errors import BadRequest

# Java's int, as in TorchServe: 68 years of seconds. Python reads any number of digits, and then no
# clock or system call takes them.
MIN_INTEGER, MAX_INTEGER = -(2**31), 2**31 - 1

_UNITS = {"ms": "milliseconds", "s": "seconds"}
_KINDS: dict[Any, type] = {int: int, float: int, int | float: int, bool: bool, str: str}


@dataclass(frozen=True, slots=True)
class Parameter:
    """Describes one field of a spec that operators may set.

    Attributes:
        name: the field.
        kind: what requests and files hold: int, bool, str, or list (of integers).
        default: where neither a request nor a file says anything.
        rest: the parameter of `POST /models`; "" where only the archive can say it. Snapshots keep
            what a request can say: the archive brings the rest back.
        word: TorchServe's name in files, snapshots and describe.
        doc: one sentence for people.
        lowest: the lowest number allowed.
        choices: the texts allowed; empty: any.
        refusal: the error for another value, instead of one made of name and range.
        is_archives: whether model-config.yaml wins over the request, not the request over it.
        is_described: whether describe shows it.
        shown_with: the field that must differ from its default for describe to show this one.
        is_unset_by_zero: whether a request's 0 means the default.
    """

    name: str
    kind: type
    default: Any
    rest: str
    word: str
    doc: str
    lowest: int = MIN_INTEGER
    choices: tuple[str, ...] = ()
    refusal: str = ""
    is_archives: bool = False
    is_described: bool = True
    shown_with: str = ""
    is_unset_by_zero: bool = False

    @property
    def unit(self) -> str:
        return _UNITS.get(self.name.rpartition("_")[2], "")

    def check(self, value: Any) -> None:
        """Checks that a version can have this value.

        Raises:
            BadRequest: the value is out of range, or not one of the choices.
        """
        if self.choices and value not in self.choices:
            raise BadRequest(f"{self.rest} must be one of {', '.join(self.choices)}.")
        if self.kind is int and value < self.lowest:
            bound = f"{self.lowest} or more {self.unit}".strip()
            text = f"{self.rest or self.word} must be {bound}, not {value}."
            raise BadRequest(self.refusal or text)


def parameter(default: Any, rest: str, word: str, **facts: Any) -> Any:
    """Declares a field that is a parameter; `facts` are further attributes of `Parameter`."""
    return field(default=default, metadata={"rest": rest, "word": word, **facts})


def parameters_of(spec_type: type[Any]) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(one.name, _KINDS.get(one.type, list), one.default, **one.metadata)
        for one in dataclasses.fields(spec_type)
        if one.metadata
    )
