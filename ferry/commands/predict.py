"""`ferry predict`: sends files to a model and prints what it answers."""

import concurrent.futures
import contextlib
import json
import sys
from typing import Any, NamedTuple

import click
from rich.markup import escape
from rich.table import Column, Table

from ferry.api import Api, error_text
from ferry.console import ending_at_interrupt, err, out
from ferry.options import check_header_value, inference_option, json_option, version_option
from ferry_client.calls import guessed_type

# More at once only lengthen the queue; a batch is filled long before.
MAX_CONCURRENT = 64


class FileAnswer(NamedTuple):
    """Keeps a file's answer or error; `status` is None where no server answered."""

    file: str
    status: int | None
    answer: Any
    is_ok: bool = False

    @property
    def classes(self) -> dict[str, float]:
        """Returns the answer as label -> probability; empty if it is something else."""
        answer = self.answer if self.is_ok and isinstance(self.answer, dict) else {}
        return answer if all(map(_is_probability, answer.values())) else {}


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
@click.option(
    "--content-type",
    default="",
    callback=check_header_value,
    help="Content type of all files. Default: guessed from each file's name.",
)
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
    bodies = []
    for name in files:
        with click.open_file(name, "rb") as file:
            bodies.append((name, file.read()))
    path = [segment for segment in ("predictions", model, version) if segment]
    predictions = _sent(bodies, inference_url, path, content_type)
    if all(prediction.status is None for prediction in predictions):
        raise click.ClickException(predictions[0].answer)
    if as_json:
        records = [prediction_record(prediction) for prediction in predictions]
        click.echo(json.dumps(records, indent=2))
    else:
        print_predictions(predictions)
    if not all(prediction.is_ok for prediction in predictions):
        sys.exit(1)


def _sent(
    bodies: list[tuple[str, bytes]], inference_url: str, path: list[str], content_type: str
) -> list[FileAnswer]:
    answered: list[str] = []

    def interruption() -> str:
        return (
            f"Stopped after {len(answered)} of {len(bodies)} answers. The server finishes the "
            "batches that it has begun, and drops the other files."
        )

    def send(body: tuple[str, bytes]) -> FileAnswer:
        name, content = body
        kind = content_type or guessed_type(name)
        try:
            response = api.answer("POST", *path, content=content, content_type=kind)
        except click.ClickException as error:
            return FileAnswer(name, None, error.message)
        answered.append(name)
        if response.is_error:
            return FileAnswer(name, response.status_code, error_text(response))
        answer = answer_value(response.content, response.headers.get("content-type", ""))
        return FileAnswer(name, response.status_code, answer, is_ok=True)

    threads = min(len(bodies), MAX_CONCURRENT)
    with (
        Api(inference_url) as api,
        concurrent.futures.ThreadPoolExecutor(threads) as pool,
        ending_at_interrupt(interruption),
    ):
        return list(pool.map(send, bodies))


def answer_value(content: bytes, content_type: str) -> Any:
    """Returns an answer to print: JSON, text, or a sentence about the bytes."""
    with contextlib.suppress(ValueError):  # UnicodeDecodeError is one
        return json.loads(content)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"{len(content)} bytes of {content_type or 'data'}"


def prediction_record(prediction: FileAnswer) -> dict[str, Any]:
    key = "answer" if prediction.is_ok else "error"
    return {"file": prediction.file, "status": prediction.status, key: prediction.answer}


def print_predictions(predictions: list[FileAnswer]) -> None:
    table = Table("file", "class", Column("probability", justify="right"), box=None)
    for prediction in predictions:
        for label, number in prediction.classes.items():
            table.add_row(escape(prediction.file), escape(label), f"{number:.4f}")
    if table.row_count:
        out().print(table)
    for prediction in predictions:
        if not prediction.is_ok:
            status = f" (HTTP {prediction.status})" if prediction.status else ""
            complaint = f"{prediction.file}: {prediction.answer}{status}"
            err().print(escape(complaint), style="red", soft_wrap=True)
        elif not prediction.classes:
            prefix = f"{prediction.file}: " if len(predictions) > 1 else ""
            answer = prediction.answer
            click.echo(
                prefix + (answer if isinstance(answer, str) else json.dumps(answer, indent=2))
            )


def _is_probability(value: Any) -> bool:
    return isinstance(value, float) and 0 <= round(value, 2) <= 1  # a softmax may say 1.0000001
