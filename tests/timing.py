"""Bars on wall-clock time, which a busy machine can miss although the code keeps them.

`make test` measures such a test again, up to twice (pytest-rerunfailures, only after `TooSlow`);
`make chaos` and `make topology` do not. A test that fails in any other way has failed.
"""

import inspect
from collections.abc import Callable
from types import CodeType


class TooSlow(AssertionError):
    """A time was longer than its bar."""


def assert_within(measured: float, bar: float) -> None:
    """Fails when a time was longer than its bar, both in the same unit."""
    if measured > bar:
        raise TooSlow(f"{measured:.4g} is more than {bar:.4g}")


def has_bars(test: Callable[..., object]) -> bool:
    """Returns whether this test, or a function inside of it, measures times."""
    codes = [inspect.unwrap(test).__code__]
    while codes:
        code = codes.pop()
        if not {"TooSlow", "assert_within"}.isdisjoint(code.co_names):
            return True
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return False
