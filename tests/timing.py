"""Bars on wall-clock time, which a busy machine can miss although the code keeps them.

`make test` measures such a test again, up to twice (pytest-rerunfailures, only after `TooSlow`);
`make chaos` and `make topology` do not. What missed its bar each time has failed, unless the host
gave this machine's processors to others meanwhile: then it is skipped, as nothing was measured. A
test that fails in any other way has failed.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import psutil
import pytest

# Of all processors' time. Ten seconds of two processors are then without one for 0.2 s, where the
# bars are a few milliseconds.
STOLEN_SHARE = 0.01


class TooSlow(AssertionError):
    """A time was longer than its bar."""


def assert_within(measured: float, bar: float) -> None:
    """Fails when a time was longer than its bar, both in the same unit."""
    if measured > bar:
        raise TooSlow(f"{measured:.4g} is more than {bar:.4g}")


def has_bars(test: Callable[..., object]) -> bool:
    """Whether this test, or a function inside of it, measures times."""
    codes = [inspect.unwrap(test).__code__]
    while codes:
        code = codes.pop()
        if not {"TooSlow", "assert_within"}.isdisjoint(code.co_names):
            return True
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return False


@contextmanager
def judged() -> Iterator[None]:
    """`TooSlow` in here skips the test if the host has taken this machine's processors away."""
    before = psutil.cpu_times()
    try:
        yield
    except TooSlow as error:
        share = stolen_share(before, psutil.cpu_times())
        if share < STOLEN_SHARE:
            raise
        pytest.skip(f"not judged, as the host took {share:.1%} of the processors: {error}")


def stolen_share(before: Any, after: Any) -> float:
    """What the host gave to others between two looks (`psutil.cpu_times`), of all time."""
    if not hasattr(after, "steal"):
        return 0.0  # not Linux
    # The time of guests is in that of users.
    spent_s = [late - early for early, late in zip(before[:8], after[:8], strict=True)]
    return (after.steal - before.steal) / max(sum(spent_s), 0.01)
