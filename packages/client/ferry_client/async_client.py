"""Asks a server from an event loop."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeVar, Unpack, overload

from ferry_client import flows
from ferry_client.calls import Data, Options
from ferry_client.connection import AsyncSender, Endpoint
from ferry_client.errors import FerryError
from ferry_client.flows import Flow
from ferry_client.jobs import JobState, JobView, Prediction

T = TypeVar("T")
Progress: TypeAlias = Callable[[int], None]

# How long a cancelled call tries to cancel its job.
_FAREWELL_S = 5.0


class AsyncClient:
    """Calls a server's inference API; arguments and errors are as in `ferry.Client`."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        token: str | None = None,
        *,
        patience_s: float = 60.0,
    ) -> None:
        self._sender = AsyncSender(Endpoint(url, token), patience_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._sender.close()

    async def predict(self, model: str, data: Data, **options: Unpack[Options]) -> Prediction:
        """Returns the model's answer; one connection waits for it."""
        return await self._sender.run(flows.predict(model, data, options, self._sender.patience_s))

    async def submit(
        self,
        model: str,
        data: Data,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[Options],
    ) -> "AsyncJob":
        """Submits the prediction as a job, and returns the job."""
        return await self._submit(model, data, options, idempotency_key)

    async def job(self, job_id: str) -> "AsyncJob":
        """Returns the job with this id."""
        return AsyncJob(
            self._sender, await self._sender.run(flows.look(job_id, self._sender.patience_s))
        )

    @overload
    def map(
        self,
        model: str,
        inputs: Iterable[Data],
        *,
        in_flight: int = ...,
        on_progress: Progress | None = ...,
        idempotency_key: Callable[[Data], str] | None = ...,
        return_errors: Literal[False] = ...,
        **options: Unpack[Options],
    ) -> AsyncIterator[Prediction]: ...
    @overload
    def map(
        self,
        model: str,
        inputs: Iterable[Data],
        *,
        in_flight: int = ...,
        on_progress: Progress | None = ...,
        idempotency_key: Callable[[Data], str] | None = ...,
        return_errors: Literal[True],
        **options: Unpack[Options],
    ) -> AsyncIterator[Prediction | FerryError]: ...
    async def map(
        self,
        model: str,
        inputs: Iterable[Data],
        *,
        in_flight: int = 64,
        on_progress: Progress | None = None,
        idempotency_key: Callable[[Data], str] | None = None,
        return_errors: bool = False,
        **options: Unpack[Options],
    ) -> AsyncIterator[Any]:
        """Yields the results of all inputs, in their order: see `ferry.Client.map`.

        `on_progress` is called on this event loop.
        """

        def start(data: Data) -> "asyncio.Task[Prediction | FerryError]":
            key = idempotency_key and idempotency_key(data)
            answering = self.answer(model, data, options, key, return_errors=return_errors)
            under_way.add(task := asyncio.create_task(answering))
            return task

        under_way: set[asyncio.Task[Prediction | FerryError]] = set()
        try:
            with contextlib.closing(in_order(start, inputs, in_flight, on_progress)) as tasks:
                for task in tasks:
                    yield await task
                    under_way.discard(task)
        finally:
            # Cancelled tasks still cancel their jobs.
            await asyncio.gather(*under_way, return_exceptions=True)

    async def answer(
        self,
        model: str,
        data: Data,
        options: Options,
        key: str | None,
        *,
        return_errors: bool = False,
    ) -> Prediction | FerryError:
        """Submits a job and returns its result; when cancelled, cancels a job without a key."""
        # Shielded: the server may have the job already, and only the answer has its id.
        submitting = asyncio.create_task(self._submit(model, data, options, key))
        try:
            job = await asyncio.shield(submitting)
            return await job.result()
        except FerryError as error:
            if return_errors:
                return error
            raise
        except asyncio.CancelledError:
            if key is None:
                with contextlib.suppress(FerryError, TimeoutError):
                    await asyncio.wait_for(_take_back(submitting), _FAREWELL_S)
            submitting.cancel()
            raise

    async def _submit(
        self, model: str, data: Data, options: Options, key: str | None
    ) -> "AsyncJob":
        flow = flows.submit(model, data, options, key, self._sender.patience_s)
        return AsyncJob(self._sender, await self._sender.run(flow))


async def _take_back(submitting: "asyncio.Task[AsyncJob]") -> None:
    await (await submitting).cancel()


class AsyncJob(JobView):
    """Follows a job of the server; its methods are as in `ferry.Job`."""

    def __init__(self, sender: AsyncSender, state: JobState) -> None:
        super().__init__(state)
        self._sender = sender

    async def refresh(self) -> Self:
        """Asks the server how the job is; returns the same object."""
        return await self._see(flows.look(self.id, self._sender.patience_s))

    async def wait(self, timeout_s: float | None = None) -> Self:
        """Waits until the job has ended, in any way."""
        return await self._see(flows.wait(self.id, timeout_s, self._sender.patience_s))

    async def result(self, timeout_s: float | None = None) -> Prediction:
        """Waits for the result: the answer of the same prediction without a job."""
        return await self._sender.run(flows.result(self.id, timeout_s, self._sender.patience_s))

    async def cancel(self) -> Self:
        """Cancels the job; if it has ended, deletes its result."""
        return await self._see(flows.cancel(self.id, self._sender.patience_s))

    async def _see(self, flow: Flow[JobState]) -> Self:
        self._state = await self._sender.run(flow)
        return self


class Future(Protocol):
    """Describes what futures of threads and of event loops have in common."""

    def cancel(self) -> bool: ...
    def add_done_callback(self, callback: Callable[[Any], None], /) -> None: ...


F = TypeVar("F", bound=Future)


def in_order(
    start: Callable[[T], F],
    inputs: Iterable[T],
    in_flight: int,
    on_progress: Callable[[int], None] | None = None,
) -> Generator[F, None, None]:
    """Starts each input when there is room for it; yields the futures in the inputs' order.

    Cancels the open futures when it is closed.

    Args:
        start: begins the work on one input.
        inputs: taken one by one.
        in_flight: how many inputs may be started and not yielded.
        on_progress: called with the number of finished inputs, where their futures call back.

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
        for item in inputs:
            future = start(item)
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
