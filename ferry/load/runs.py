"""Single runs of load, with a progress bar and the batch sizes of /metrics; sweeps of them."""

import itertools
import uuid
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

import click
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from ferry.api import Api
from ferry.console import err
from ferry.load.driver import Load, Outcome, drive
from ferry.load.figures import Figures, batch_count, figures
from ferry.load.report import Point

EXTRA = "this needs more packages: pip install aiohttp matplotlib"


def progress_bar(seconds: float, *, is_quiet: bool) -> Progress:
    """Returns a bar for runs of `seconds` in all; shown on a terminal only, and gone afterwards."""
    console = err()
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[answers]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=is_quiet or not console.is_terminal,
    )
    progress.add_task("", total=seconds, answers="")
    return progress


def measure_run(load: Load, metrics_url: str, bar: Progress, text: str) -> Figures:
    """Measures one run, which the bar shows under `text`. Blocks until it is over.

    Raises:
        ClickException: aiohttp is not installed.
    """
    [task] = bar.tasks
    done_s = task.completed

    def show(seconds: float, so_far: Outcome) -> None:
        answers = f"{so_far.statuses.total()} answers"
        at_s = done_s + seconds
        bar.update(task.id, completed=at_s, description=escape(text), answers=answers)

    model_name = model_of(load.url)
    before = batch_count(metrics_url, model_name)
    try:
        outcome = drive(load, show)
    except ImportError as error:
        raise click.ClickException(f"{EXTRA} ({error})") from error
    after = batch_count(metrics_url, model_name)
    mean = after.since(before) if before is not None and after is not None else None
    return figures(outcome, mean)


def model_of(url: str) -> str:
    """Returns the model's name in a prediction's URL; empty when it is something else."""
    kind, _, rest = urlsplit(url).path.strip("/").partition("/")
    return unquote(rest.partition("/")[0]) if kind == "predictions" else ""


def combinations(batch_sizes: list[int], delays: list[int]) -> list[tuple[int, int]]:
    """Returns each (batch size, delay) to measure, single requests first.

    A batch of one never waits, so one delay is enough for it.
    """
    many = [size for size in batch_sizes if size > 1]
    return [(1, 0), *itertools.product(many, delays)]


@dataclass(frozen=True, slots=True)
class Sweep:
    """An archive that is registered, measured and removed, again and again."""

    archive: str
    workers: int
    management_url: str
    inference_url: str
    metrics_url: str

    def measure(self, load: Load, batch_size: int, delay_ms: int, bar: Progress) -> Point:
        """Measures one combination, under a model name of its own, and unregisters it.

        Raises:
            ClickException: the server refuses the model or cannot be reached.
        """
        name = f"bench-{uuid.uuid4().hex[:8]}"
        url = f"{self.inference_url.rstrip('/')}/predictions/{name}"
        with Api(self.management_url) as api:
            try:
                api.call(
                    "POST",
                    "models",
                    url=self.archive,
                    model_name=name,
                    batch_size=batch_size,
                    max_batch_delay=delay_ms,
                    initial_workers=self.workers,
                    synchronous="true",
                )
                text = f"batch size {batch_size}, delay {delay_ms} ms"
                found = measure_run(replace(load, url=url), self.metrics_url, bar, text)
            finally:
                # It may be there or not, if the registration was refused or interrupted.
                api.send("DELETE", "models", name)
        return Point(batch_size, delay_ms, found)
