"""Defines the vocabulary of models in Python: `import ferry`, and a class or a function.

Imports neither torch nor anything else of this project, so that a model's file is cheap to import.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, overload

# Where a decorated function keeps its settings.
MARK = "__ferry_settings__"

F = TypeVar("F", bound=Callable[..., Any])


class BadInput(Exception):
    """Refuses a row: its client gets 400 with this text, and nobody else is harmed.

    Put it in the list that `predict` returns, at the place of the row, or raise it.
    """


@dataclass(frozen=True, slots=True)
class Answer:
    """Gives a row's answer a content type, headers or status of its own.

    `body` may be whatever `predict` may return for a row. An empty `content_type` follows from the
    body's Python type.
    """

    body: Any = b""
    content_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Requests:
    """Holds ids, headers and deadlines of the rows, in their order, for a `predict` that asks.

    `headers` have names in lower case. `deadlines_s` are moments of `time.monotonic()`, after which
    nobody waits for the answer.
    """

    ids: Sequence[str] = ()
    headers: Sequence[Mapping[str, str]] = ()
    queries: Sequence[Mapping[str, str]] = ()
    deadlines_s: Sequence[float] = ()


class Model:
    """Is the base of models with settings and a life of their own; subclasses define `predict`.

    Class attributes are settings, under the names of `POST /models`, such as `batch_size` and
    `max_batch_delay` in milliseconds; `name` and `version`, and `warm_up`: examples of rows.
    """

    name: ClassVar[str] = ""
    version: ClassVar[str] = "1.0"
    warm_up: ClassVar[Sequence[Any]] = ()

    def load(self, device: str) -> None:
        """Loads what `predict` needs, once per worker; `device` is what torch calls it."""

    def unload(self) -> None:
        """Gives back what `load` took, when the worker ends."""

    def predict(self, batch: list[Any]) -> Any:
        """Returns one output per row of the batch, in their order.

        Raises:
            NotImplementedError: the subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method predict(self, batch)")


@overload
def model(function: F, /) -> F: ...


@overload
def model(**settings: Any) -> Callable[[F], F]: ...


def model(function: Any = None, /, **settings: Any) -> Any:
    """Marks a function as a model: `@ferry.model(batch_size=8)` or `@ferry.model`."""

    def mark(marked: F) -> F:
        setattr(marked, MARK, settings)
        return marked

    return mark if function is None else mark(function)


# Takes kind, name and value of a measurement. A worker puts its own in; elsewhere there is none.
Measure = Callable[[str, str, float], None]
MEASURES: list[Measure] = []


def count(name: str, number: float = 1) -> None:
    """Adds to a counter, which /metrics shows with the model's name and version."""
    for measure in MEASURES:
        measure("counter", name, number)


def observe(name: str, value: float) -> None:
    """Adds a value to a histogram, which /metrics shows with the model's name and version."""
    for measure in MEASURES:
        measure("histogram", name, value)
