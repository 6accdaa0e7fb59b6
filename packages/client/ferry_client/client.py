"""Asks a server, blocking. Safe to use from several threads."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from ferry_client import flows
from ferry_client.async_client import AsyncClient, Progress, in_order
from ferry_client.calls import Data, Options
from ferry_client.connection import Endpoint, Sender
from ferry_client.errors import FerryError
from ferry_client.flows import Flow
from ferry_client.jobs import JobState, JobView, Prediction

T = TypeVar("T")


class Client:
    """Calls a server's inference API.

    Args:
        url: such as `http://host:8080`.
        token: for a server that asks for one; None: FERRY_TOKEN in the environment.
        patience_s: how long a request is sent again while the server refuses it for now (503 with
            Retry-After) or, after it has once answered, cannot be reached.

    Raises:
        FerryError: any method may raise the errors of `ferry_client.errors`.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        token: str | None = None,
        *,
        patience_s: float = 60.0,
    ) -> None:
        self._sender = Sender(Endpoint(url, token), patience_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._sender.close()

    def predict(self, model: str, data: Data, **options: Unpack[Options]) -> Prediction:
        """Returns the model's answer; one connection waits for it."""
        return self._sender.run(flows.predict(model, data, options, self._sender.patience_s))

    def submit(
        self,
        model: str,
        data: Data,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[Options],
    ) -> "Job":
        """Submits the prediction as a job, and returns the job.

        Args:
            model: the model's name.
            data: bytes, text, a file's path, or what is to be sent as JSON.
            idempotency_key: while a job is kept, the same key and data give that job.
            options: see `Options`.
        """
        flow = flows.submit(model, data, options, idempotency_key, self._sender.patience_s)
        return Job(self._sender, self._sender.run(flow))

    def job(self, job_id: str) -> "Job":
        """Returns the job with this id."""
        return Job(self._sender, self._sender.run(flows.look(job_id, self._sender.patience_s)))

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
    ) -> Iterator[Prediction]: ...
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
    ) -> Iterator[Prediction | FerryError]: ...
    def map(
        self,
        model: str,
        inputs: Iterable[Data],
        *,
        in_flight: int = 64,
        on_progress: Progress | None = None,
        idempotency_key: Callable[[Data], str] | None = None,
        return_errors: bool = False,
        **options: Unpack[Options],
    ) -> Iterator[Any]:
        """Yields the results of all inputs, in their order; each is a job.

        When the iteration ends early, open jobs are cancelled, unless they have keys: the same
        inputs with the same keys find their jobs again.

        Args:
            model: the model's name.
            inputs: as `data` of `submit`; taken when there is room for them.
            in_flight: how many jobs may be open at once.
            on_progress: called with the number of finished jobs after each, in a thread of the
                client's.
            idempotency_key: gives each input's key.
            return_errors: yields an input's error in its place; otherwise the first is raised.
            options: see `Options`.
        """
        with _BackgroundLoop() as loop:
            client = loop.wait(self._async_client())

            def start(data: Data) -> Any:
                key = idempotency_key and idempotency_key(data)
                return loop.start(
                    client.answer(model, data, options, key, return_errors=return_errors)
                )

            try:
                with contextlib.closing(in_order(start, inputs, in_flight, on_progress)) as futures:
                    for future in futures:
                        yield future.result()
            finally:
                loop.finish()
                loop.wait(client.close())

    async def _async_client(self) -> AsyncClient:
        """Makes a client for the event loop that this runs on."""
        endpoint = self._sender.endpoint
        return AsyncClient(endpoint.url, endpoint.token, patience_s=self._sender.patience_s)


class Job(JobView):
    """Follows a job of the server."""

    def __init__(self, sender: Sender, state: JobState) -> None:
        super().__init__(state)
        self._sender = sender

    def refresh(self) -> Self:
        """Asks the server how the job is; returns the same object."""
        return self._see(flows.look(self.id, self._sender.patience_s))

    def wait(self, timeout_s: float | None = None) -> Self:
        """Waits until the job has ended, in any way.

        Raises:
            WaitTimeout: it has not ended in time.
        """
        return self._see(flows.wait(self.id, timeout_s, self._sender.patience_s))

    def result(self, timeout_s: float | None = None) -> Prediction:
        """Waits for the result: the answer of the same prediction without a job.

        Raises:
            WaitTimeout: there is none in time.
            ResultGone: the job was cancelled, or its result has been deleted.
            AnswerError: the job failed.
        """
        return self._sender.run(flows.result(self.id, timeout_s, self._sender.patience_s))

    def cancel(self) -> Self:
        """Cancels the job; if it has ended, deletes its result."""
        return self._see(flows.cancel(self.id, self._sender.patience_s))

    def _see(self, flow: Flow[JobState]) -> Self:
        self._state = self._sender.run(flow)
        return self


class _BackgroundLoop:
    """Runs an event loop in a thread of its own, during a `with` block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="ferry-client", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begins the coroutine; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.start(coroutine).result()

    def finish(self) -> None:
        """Waits until all coroutines have ended."""
        self.wait(_finish())


async def _finish() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
