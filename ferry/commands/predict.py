"""`ferry predict`: sends files to a model and prints what it answers."""

import concurrent.futures
import json
import mimetypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx
from rich.markup import escape
from rich.table import Table

from ferry.api import Api, error_text
from ferry.console import err, out
from ferry.options import check_header_value, inference_option, json_option, version_option

# More at once only lengthen the line; a batch is filled long before.
MAX_CONCURRENT = 64
STDIN = "-"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What came back for one file; without a status, why nothing did."""

    file: str
    status: int | None
    answer: Any

    @property
    def is_ok(self) -> bool:
        """Returns whether the model answered rather than the server refused."""
        return self.status is not None and self.status < httpx.codes.BAD_REQUEST

    @property
    def classes(self) -> dict[str, float] | None:
        """Returns the answer as label -> probability, if it can be that."""
        answer = self.answer
        if not isinstance(answer, dict) or not answer:
            return None
        return answer if all(_is_probability(value) for value in answer.values()) else None


@click.command()
@click.argument("model")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@version_option
@click.option(
    "--content-type",
    default="",
    callback=check_header_value,
    help="Of all files. Default: guessed from each file's name.",
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
    bodies = [(name, _read(name)) for name in files]
    path = ("predictions", model, version) if version else ("predictions", model)
    with (
        Api(inference_url) as api,
        concurrent.futures.ThreadPoolExecutor(min(len(bodies), MAX_CONCURRENT)) as pool,
    ):

        def send(body: tuple[str, bytes]) -> Prediction:
            name, content = body
            kind = content_type or _content_type(name)
            try:
                response = api.send("POST", *path, content=content, content_type=kind)
            except click.ClickException as error:
                return Prediction(name, None, error.message)
            return Prediction(name, response.status_code, _answer(response))

        predictions = list(pool.map(send, bodies))
    if all(prediction.status is None for prediction in predictions):
        raise click.ClickException(predictions[0].answer)
    if as_json:
        click.echo(json.dumps([_record(prediction) for prediction in predictions], indent=2))
    else:
        _print(predictions)
    if not all(prediction.is_ok for prediction in predictions):
        sys.exit(1)


def _read(name: str) -> bytes:
    if name == STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise click.ClickException(f"cannot read {name}: {error.strerror}") from error


def _content_type(name: str) -> str:
    """Returns the types that a handler gets decoded.

    Anything else goes as bare bytes, like `curl -T`.
    """
    kind = mimetypes.guess_type(name)[0] or ""
    return kind if kind == "application/json" or kind.startswith("text/") else ""


def _answer(response: httpx.Response) -> Any:
    if response.status_code >= httpx.codes.BAD_REQUEST:
        return error_text(response)
    try:
        return response.json()
    except ValueError:  # covers text that is not UTF-8 as well
        pass
    try:
        return response.content.decode()
    except UnicodeDecodeError:
        kind = response.headers.get("content-type", "data")
        return f"{len(response.content)} bytes of {kind}"


def _record(prediction: Prediction) -> dict[str, Any]:
    key = "answer" if prediction.is_ok else "error"
    return {"file": prediction.file, "status": prediction.status, key: prediction.answer}


def _print(predictions: list[Prediction]) -> None:
    table = Table("file", "class", "probability", box=None)
    table.columns[2].justify = "right"
    for prediction in predictions:
        if prediction.is_ok and prediction.classes is not None:
            name = prediction.file
            for label, number in prediction.classes.items():
                table.add_row(escape(name), escape(label), f"{number:.4f}")
                name = ""
    if table.row_count:
        out().print(table)
    for prediction in predictions:
        if not prediction.is_ok:
            status = f" (HTTP {prediction.status})" if prediction.status else ""
            text = f"{prediction.file}: {prediction.answer}{status}"
            err().print(escape(text), style="red", soft_wrap=True)
        elif prediction.classes is None:
            prefix = f"{prediction.file}: " if len(predictions) > 1 else ""
            click.echo(prefix + _text(prediction.answer))


def _text(answer: Any) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, indent=2)


def _is_probability(value: Any) -> bool:
    return isinstance(value, float) and 0 <= round(value, 2) <= 1  # a softmax may say 1.0000001
