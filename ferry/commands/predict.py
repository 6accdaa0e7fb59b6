"""`ferry predict`: sends files to a model and prints what it answers."""

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import click
from rich.markup import escape
from rich.progress import track

from ferry.api import click_errors, complaint, require_ours
from ferry.console import ending_at_interrupt, err
from ferry.options import content_type_option, inference_option, json_option, version_option
from ferry_client.calls import guessed_type
from ferry_client.client import Client
from ferry_client.errors import AnswerError, FerryError, ServerUnreachable, Unauthorized
from ferry_client.jobs import Prediction

T = TypeVar("T")

# More at once only lengthen the queue; a batch is filled long before.
_MOST_AT_ONCE = 64


class FileAnswer(NamedTuple):
    """Keeps what became of a file; `result` is the path of the answer, `job` its job's id."""

    file: str
    job: str | None = None
    status: int | None = None
    answer: Any = None
    result: str | None = None
    error: str | None = None


@click.command()
@click.argument("model")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
)
@version_option
@content_type_option
@inference_option
@json_option
def predict(  # noqa: PLR0917 - click passes all of them by name
    model: str,
    files: tuple[str, ...],
    version: str,
    content_type: str,
    inference_url: str,
    as_json: bool,
) -> None:
    """Send each FILE to MODEL, several at once, and print the answers. `-` is standard input."""

    def send(name: str) -> FileAnswer:
        with click.open_file(name, "rb") as file:
            content = file.read()
        kind = content_type or guessed_type(name)
        try:
            answer = client.predict(model, content, version=version, content_type=kind)
        except FerryError as error:
            return failed(name, error)
        return FileAnswer(name, status=answer.status, answer=answer_value(answer))

    rest = "The server finishes the batches that it has begun, and drops the other files."
    with click_errors(), Client(inference_url, patience_s=0) as client:
        answers = send_all(send, files, _MOST_AT_ONCE, lambda: rest)
    if all(answer.error for answer in answers):
        require_ours(inference_url, answers[0].status)
    print_answers(answers, as_json=as_json)
    if any(answer.error for answer in answers):
        sys.exit(1)


def send_all(
    send: Callable[[T], FileAnswer], files: Sequence[T], in_flight: int, rest: Callable[[], str]
) -> list[FileAnswer]:
    """Sends the files, `in_flight` at a time, with a progress bar on a terminal.

    Args:
        send: sends a file; its FerryError ends all.
        files: to send.
        in_flight: how many may be under way at once.
        rest: is called when Ctrl-C is pressed; returns what becomes of the rest.
    """
    sending: list[Future[FileAnswer]] = []

    def interruption() -> str:
        what_is_left = rest()
        done = sum(map(Future.done, sending))
        return f"Stopped after {done} of {len(files)} answers. {what_is_left}"

    console = err()
    with ThreadPoolExecutor(in_flight) as pool, ending_at_interrupt(interruption):
        sending.extend(pool.submit(send, file) for file in files)
        try:
            shown = track(sending, "Sent", console=console, disable=not console.is_terminal)
            return [future.result() for future in shown]
        except FerryError:
            pool.shutdown(cancel_futures=True)
            raise


def failed(file: str, error: FerryError, job: str | None = None) -> FileAnswer:
    """Returns the file's error; raises one that every other file would meet, too."""
    is_unreachable = isinstance(error, ServerUnreachable) and not error.was_sent
    if job is None and (is_unreachable or isinstance(error, Unauthorized)):
        raise error
    status = error.status if isinstance(error, AnswerError) else None
    return FileAnswer(file, job, status, error=complaint(error))


def answer_value(answer: Prediction) -> Any:
    """Returns an answer to print: JSON, text, or a sentence about the bytes."""
    with contextlib.suppress(ValueError):  # UnicodeDecodeError is one
        return json.loads(answer.content)
    try:
        return answer.content.decode()
    except UnicodeDecodeError:
        return f"{len(answer.content)} bytes of {answer.content_type or 'data'}"


def print_answers(answers: Sequence[FileAnswer], *, as_json: bool) -> None:
    """Prints answers as they are, and complains of errors."""
    if as_json:
        records = [
            {name: value for name, value in answer._asdict().items() if value is not None}
            for answer in answers
        ]
        click.echo(json.dumps(records, indent=2))
        return
    for file, job, status, answer, result, error in answers:
        if error is not None:
            parts = [f"HTTP {status}"] * bool(status) + [f"job {job}"] * bool(job)
            text = f"{file}: {error}" + (f" ({', '.join(parts)})" if parts else "")
            err().print(escape(text), style="red", soft_wrap=True)
        elif status is not None and result is None:
            prefix = f"{file}: " if len(answers) > 1 else ""
            text = answer if isinstance(answer, str) else json.dumps(answer, indent=2)
            click.echo(prefix + text)
