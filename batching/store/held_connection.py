"""A connection of one thread's own, for the calls that are made for every batch."""

from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from batching.store.client_types import Client
from batching.store.commands import Buffer, Command, packed
from batching.store.lost_connections import drop_if_lost
from batching.store.scripts import loader as scripts
from batching.store.scripts.loader import ScriptCall


class HeldConnection:
    """As `AsyncHeldConnection`.

    Its calls raise redis' own errors and OSErrors. The commands may then have been carried out.
    """

    def __init__(self, client: Client) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None

    def run(self, verb: str, keys: Sequence[str], arguments: Sequence[str | int | bytes]) -> Any:
        """Returns what the script `<verb>.lua` answers."""
        command = packed(scripts.command(verb, keys, arguments))
        try:
            return self._answer(command)
        except NoScriptError:
            self.call(("SCRIPT", "LOAD", scripts.source(verb)))
            return self._answer(command)

    def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Returns what each script answers, or its ResponseError; one round trip for all."""
        commands = [packed(scripts.command(*call)) for call in calls]
        answers = self.exchange(commands, len(calls))
        for place, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                self.call(("SCRIPT", "LOAD", scripts.source(calls[place][0])))
                [answers[place]] = self.exchange([commands[place]], 1)
        return answers

    def call(self, command: Command) -> Any:
        """Returns the answer to the command."""
        return self._answer(packed(command))

    def fetch(self, names: Sequence[str]) -> list[bytearray | None]:
        """Returns the strings under these names, as they were received; None for a missing one."""
        strings: list[bytearray | None] = self._answer(
            packed(("MGET", *names)), disable_decoding=True
        )
        return strings

    def exchange(self, commands: Sequence[Buffer], count: int) -> list[Any]:
        """Returns the answers to so many packed commands, ResponseErrors among them.

        The buffers are sent as they are, without a copy.
        """
        connection = self._ready()

        def exchange() -> list[Any]:
            connection.send_packed_command(commands)
            return [_answer_or_error(connection) for _ in range(count)]

        answers: list[Any] = _with_retry(connection, exchange)
        return answers

    def _answer(self, command: bytes, **options: bool) -> Any:
        connection = self._ready()

        def exchange() -> Any:
            connection.send_packed_command((command,))
            return connection.read_response(**options)

        return _with_retry(connection, exchange)

    def _ready(self) -> Any:
        """Returns the connection, checked as the pool checks one that it gives away."""
        connection = self._connection
        if connection is None:
            connection = self._connection = self._pool.get_connection()
        connection.connect()
        drop_if_lost(connection)
        return connection


def _answer_or_error(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _with_retry(connection: Any, exchange: Callable[[], Any]) -> Any:
    return connection.retry.call_with_retry(exchange, lambda _: connection.disconnect())
