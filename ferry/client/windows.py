"""Keeps a number of things under way at once, and gives them out in order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, TypeVar


class Future(Protocol):
    """Names what futures of threads and of event loops have in common."""

    def cancel(self) -> bool: ...
    def add_done_callback(self, callback: Callable[[Any], None], /) -> None: ...


T = TypeVar("T")
F = TypeVar("F", bound=Future)


def in_order(
    start: Callable[[T], F],
    inputs: Iterable[T],
    in_flight: int,
    on_progress: Callable[[int], None] | None = None,
) -> Generator[F, None, None]:
    """Starts each input when there is room for it; yields the futures in the inputs' order.

    Cancels those that are open when it is closed.

    Args:
        start: begins the work on one input.
        inputs: taken one by one.
        in_flight: so many are begun and not yet given out.
        on_progress: called with the number of finished ones, where their futures call back.

    Raises:
        ValueError: `in_flight` is less than 1.
    """
    if in_flight < 1:
        raise ValueError(f"in_flight must be 1 or more, not {in_flight}")
    under_way: deque[F] = deque()
    finished = 0

    def count(_: object) -> None:
        nonlocal finished
        finished += 1
        if on_progress is not None:
            on_progress(finished)

    try:
        for one in inputs:
            future = start(one)
            future.add_done_callback(count)
            under_way.append(future)
            if len(under_way) >= in_flight:
                yield under_way[0]
                under_way.popleft()
        while under_way:
            yield under_way[0]
            under_way.popleft()
    finally:
        for future in under_way:
            future.cancel()
