"""`ferry bench`: how much a server takes, and what batching does for a model."""

import contextlib
import json
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from rich.markup import escape
from rich.table import Table

from ferry.console import out, warn
from ferry.load.driver import Load
from ferry.load.figures import Figures
from ferry.load.load_options import load_options, make_load
from ferry.load.report import HEADS, Point, as_record, table, write_report
from ferry.load.runs import EXTRA, Sweep, combinations, measure_run, model_of, progress_bar
from ferry.options import inference_option, json_option, management_option

NO_SUCCESS = "no request was answered with a success"
# Each was part of the warm-up, which took longer than the whole run; or --rate is low.
NONE_MEASURED = "no request was sent in the seconds that are measured: raise --duration"


def _numbers(smallest: int) -> Callable[[click.Context, click.Parameter, str], list[int]]:
    """Returns a callback that reads whole numbers from `smallest` on, separated by commas."""

    def read(_context: click.Context, _parameter: click.Parameter, value: str) -> list[int]:
        texts = [text.strip() for text in value.split(",")]
        if not all(text.isdecimal() and int(text) >= smallest for text in texts):
            raise click.BadParameter(f"{value!r}: whole numbers from {smallest} on, with commas")
        return sorted({int(text) for text in texts})

    return read


@click.group()
def bench() -> None:
    """Measure throughput and latency under load."""


@bench.command(name="url")
@click.argument("url")
@load_options
@json_option
def bench_url(url: str, metrics_url: str, as_json: bool, **options: Any) -> None:
    """Send POST requests to one URL and measure throughput and latency.

    URL may be that of any HTTP server; of a model here it is
    http://localhost:8080/predictions/MODEL.

    Without --rate, each connection sends its next request when it has an answer (closed loop). With
    --rate, requests are sent on schedule whether or not earlier ones were answered (open loop).
    """
    load = make_load(url, **options)
    if not _is_http(url):
        raise click.BadParameter(f"not a URL like http://host:port/path: {url}")
    with progress_bar(load.warmup_s + load.duration_s, is_quiet=as_json) as bar:
        found = measure_run(load, metrics_url, bar, url)
    if as_json:
        click.echo(json.dumps({"url": url, **asdict(found)}, indent=2))
    else:
        _print_figures(found)
    _require_success(found)
    if model_of(url):
        _warn_of_unknown_batches([found], metrics_url)


@bench.command(name="batching")
@click.argument("archive")
@click.option(
    "--batch-sizes",
    callback=_numbers(1),
    default="1,2,4,8",
    show_default=True,
    help="Batch sizes to try, separated by commas.",
)
@click.option(
    "--delays",
    callback=_numbers(0),
    default="0,10",
    show_default=True,
    help="Batch delays to try, in milliseconds, separated by commas.",
)
@click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, help="Workers per node."
)
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default="bench",
    show_default=True,
    help="Folder for chart.png and report.json.",
)
@load_options
@management_option
@inference_option
@json_option
def bench_batching(  # noqa: PLR0917 - click passes all of them by name
    archive: str,
    batch_sizes: list[int],
    delays: list[int],
    workers: int,
    folder: Path,
    management_url: str,
    inference_url: str,
    metrics_url: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Register ARCHIVE with each batch size and delay in turn, and measure each.

    Batch size 1 is always measured, too: the baseline that batching is compared with.

    Where tokens are on, FERRY_TOKEN is the management key and FERRY_INFERENCE_TOKEN the inference
    key.
    """
    sweep = Sweep(archive, workers, management_url, inference_url, metrics_url)
    load = make_load("", **options)
    with _writing(folder):  # before minutes of measuring
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    plan = combinations(batch_sizes, delays)
    seconds = (load.warmup_s + load.duration_s) * len(plan)
    points: list[Point] = []
    # A job's time limit ends it with SIGTERM, and a model left behind would keep its workers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with progress_bar(seconds, is_quiet=as_json) as bar:
            for size, delay in plan:
                points.append(sweep.measure(load, size, delay, bar))
                # Without a success in the first run, the others would have none either.
                _require_success(points[0].figures)
    except KeyboardInterrupt:
        if points and not as_json:
            _print_points(points)
        raise
    facts = _facts(sweep, load)
    if as_json:
        click.echo(as_record(facts, points))
    else:
        _print_points(points)
    _warn_of_unknown_batches([point.figures for point in points], metrics_url)
    with _writing(folder):
        paths = write_report(folder, f"Batching {archive}", facts, points)
    if not as_json:
        click.echo(f"Wrote {', '.join(map(str, paths))}.")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turns what keeps the report from being written into a sentence."""
    try:
        yield
    except ImportError as error:
        raise click.ClickException(f"{EXTRA} ({error})") from error
    except OSError as error:
        raise click.ClickException(f"cannot write to {folder}: {error.strerror}") from error


def _require_success(found: Figures) -> None:
    if not found.requests:
        raise click.ClickException(NONE_MEASURED)
    if found.errors == found.requests:
        failure = found.failures[0]
        raise click.ClickException(f"{NO_SUCCESS}: {failure.kind}, the first: {failure.text}")


def _warn_of_unknown_batches(found: list[Figures], metrics_url: str) -> None:
    if all(one.mean_batch is None for one in found):
        warn(f"{metrics_url} does not tell how large batches were (--metrics-url)")


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # no such port, or half an address
        return False


def _facts(sweep: Sweep, load: Load) -> dict[str, str]:
    return {
        "archive": sweep.archive,
        "workers": str(sweep.workers),
        "body": f"{len(load.body)} bytes",
        "connections": str(load.connections),
        "requests leave": f"{load.rate_per_s:g}/s" if load.rate_per_s else "as answers come",
        "seconds per run": f"{load.duration_s:g}, after {load.warmup_s:g} of warming up",
    }


def _print_figures(found: Figures) -> None:
    rows = {
        "requests/s": f"{found.requests_per_s:.1f}",
        "p50": f"{found.p50_ms:.1f} ms",
        "p95": f"{found.p95_ms:.1f} ms",
        "p99": f"{found.p99_ms:.1f} ms",
        "mean batch": "-" if found.mean_batch is None else f"{found.mean_batch:.1f}",
        "requests": str(found.requests),
        "errors": str(found.errors),
    }
    rows |= {f"  {one.kind}": f"{one.count}, the first: {one.text}" for one in found.failures}
    grid = Table(box=None, show_header=False)
    for name, value in rows.items():
        grid.add_row(name, escape(value))
    out(wraps=True).print(grid)


def _print_points(points: list[Point]) -> None:
    # It must fit into a terminal of 80 columns.
    grid = Table(*HEADS, box=None, pad_edge=False, collapse_padding=True)
    for column in grid.columns:
        column.justify = "right"
    for row in table(points):
        grid.add_row(*row)
    out().print(grid)
    for point in points:
        for one in point.figures.failures:
            setting = f"batch size {point.batch_size}, delay {point.delay_ms} ms"
            warn(f"{setting}: {one.kind} ({one.count}), the first: {one.text}")
