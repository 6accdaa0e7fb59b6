"""64 digits that the network has never seen, sent by 16 clients at once to a running server.

    python -m examples.digits.demo --address http://127.0.0.1:8080

draws some of them with their answers, then says how many were right and how the server batched
them. Exit code 0: at least 95 % right; 1: fewer; 2: a request was not answered.
"""

import argparse
import io
import itertools
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import numpy as np
from PIL import Image
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.digits.data import held_out

DIGITS = 64
CLIENTS = 16
DRAWN = 6
EXPECTED_ACCURACY = 0.95
SHADES = " ░▒▓█"
BAR_CHARS = 40
EXIT_GOOD, EXIT_WRONG, EXIT_UNANSWERED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer to one picture, and the size of its batch."""

    png: bytes
    label: int
    digit: int
    probability: float
    batch_size: int
    latency_ms: float

    @property
    def is_right(self) -> bool:
        return self.digit == self.label


def ask_all(url: str, pictures: Sequence[tuple[bytes, int]], clients: int) -> list[Answer]:
    """Asks about each picture, with that many clients at once; returns the answers in order.

    Raises:
        httpx.HTTPError: no server answers, or an answer is not 200.
    """
    with (
        httpx.Client(trust_env=False, timeout=30) as client,
        ThreadPoolExecutor(max_workers=clients) as threads,
    ):
        return list(threads.map(lambda picture: _ask(client, url, *picture), pictures))


def _ask(client: httpx.Client, url: str, png: bytes, label: int) -> Answer:
    started_at = time.perf_counter()
    reply = client.post(url, content=png, headers={"content-type": "image/png"})
    latency_ms = (time.perf_counter() - started_at) * 1000
    reply.raise_for_status()
    answer = reply.json()
    batch_size = int(reply.headers.get("x-batch-size", "1"))
    return Answer(png, label, answer["digit"], answer["probability"], batch_size, latency_ms)


def draw(answer: Answer) -> Panel:
    """Draws the picture in text, with its answer above, green when right."""
    with Image.open(io.BytesIO(answer.png)) as image:
        levels = np.rint(np.asarray(image) / 255 * (len(SHADES) - 1)).astype(int)
    # Two characters a pixel: a terminal's cell is twice as high as wide.
    lines = ("".join(SHADES[level] * 2 for level in row) for row in levels)
    color = "green" if answer.is_right else "red"
    note = "" if answer.is_right else f", is {answer.label}"
    title = f"{answer.digit} ({answer.probability:.1%}){note}"
    return Panel(Text("\n".join(lines)), title=title, border_style=color, expand=False)


def to_draw(answers: Sequence[Answer]) -> list[Answer]:
    """Chooses all mistakes first, then right answers of different digits; at most DRAWN."""
    mistakes = [answer for answer in answers if not answer.is_right]
    one_per_digit = {answer.digit: answer for answer in answers if answer.is_right}
    return [*mistakes, *(one_per_digit[digit] for digit in sorted(one_per_digit))][:DRAWN]


def batch_histogram(answers: Sequence[Answer]) -> Table:
    """Counts the batches of each size that occurred.

    Each of the n answers of a batch names its size n, so the number of batches is answers / n. The
    result is no whole number when another client's requests were in a batch, too.
    """
    table = Table(title="batches the server formed", title_justify="left", box=None)
    table.add_column("size", justify="right")
    table.add_column("digits", justify="right")
    table.add_column("batches", justify="right")
    table.add_column("")
    digits_by_size = Counter(answer.batch_size for answer in answers)
    most = max(digits_by_size.values())
    for size, digits in sorted(digits_by_size.items()):
        bar = "█" * max(1, round(BAR_CHARS * digits / most))
        table.add_row(str(size), str(digits), f"{digits / size:g}", bar)
    return table


def show(console: Console, answers: Sequence[Answer]) -> None:
    """Prints drawings, accuracy, latency and batches."""
    console.print(Columns([draw(answer) for answer in to_draw(answers)]))
    right = sum(answer.is_right for answer in answers)
    latency_ms = statistics.median(answer.latency_ms for answer in answers)
    console.print(
        f"[bold]{right} of {len(answers)} right ({accuracy(answers):.1%})[/bold], "
        f"median latency {latency_ms:.1f} ms",
        highlight=False,
    )
    console.print(batch_histogram(answers))


def accuracy(answers: Sequence[Answer]) -> float:
    """Returns the share of right answers, 0 to 1."""
    return sum(answer.is_right for answer in answers) / len(answers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Asks the server and shows its answers; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--address", default="http://127.0.0.1:8080", help="inference address")
    parser.add_argument("--model", default="digits")
    options = parser.parse_args(arguments)
    console = Console()
    # Neighbours in the set come from one writer: spread the choice over all of it.
    everything = held_out()
    pictures = list(itertools.islice(everything, 0, None, len(everything) // DIGITS))[:DIGITS]
    url = f"{options.address.rstrip('/')}/predictions/{options.model}"
    try:
        answers = ask_all(url, pictures, CLIENTS)
    except httpx.HTTPStatusError as error:
        reply = error.response
        console.print(
            f"{url} answered {reply.status_code}: {reply.text}", style="red", markup=False
        )
        return EXIT_UNANSWERED
    except httpx.HTTPError as error:
        console.print(f"no answer from {url}: {error}", style="red", markup=False)
        return EXIT_UNANSWERED
    show(console, answers)
    return EXIT_GOOD if accuracy(answers) >= EXPECTED_ACCURACY else EXIT_WRONG


if __name__ == "__main__":
    sys.exit(main())
