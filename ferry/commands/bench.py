"""`ferry bench`: what batching does for a model, in a table and a chart for the terminal."""

import contextlib
import functools
import http.client
import itertools
import json
import math
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import click
from rich.progress import track

from ferry.api import Api, click_errors
from ferry.console import err, print_table, warn
from ferry.options import inference_option, json_option, management_option
from ferry_client.calls import read_data
from ferry_client.connection import TOKEN_VARIABLE, token_of

# Both APIs are called here, and they have keys of their own.
_INFERENCE_TOKEN_VARIABLE = "FERRY_INFERENCE_TOKEN"  # noqa: S105 - its name
_ANSWER_TIMEOUT_S = 60.0
_FIRST_ERROR = 400
_WIDEST_BAR = 20
_WARMUP_S = 1.0
# A client must not spin when no server listens.
_PAUSE_S = 0.01
_HEADS = ("clients", "batch size", "requests/s", "x single", "p50 ms", "p99 ms", "errors", "")

# The seconds that a success took, or the text of an error.
Answer: TypeAlias = float | str


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str) -> list[int]:
    numbers = [number.strip() for number in value.split(",")]
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise click.BadParameter(f"{value!r}: whole numbers from 1 on, with commas")
    return sorted(set(map(int, numbers)))


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):  # no range refuses NaN
        raise click.BadParameter(f"{value} is not a number.")
    return value


@click.command(context_settings={"show_default": True})
@click.argument("archive")
@click.option(
    "--body",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File that each request sends as its body. Default: an empty body.",
)
@click.option(
    "--batch-sizes",
    callback=_numbers,
    default="1,2,4,8",
    help="Batch sizes to try, separated by commas. 1 is always tried: the baseline.",
)
@click.option(
    "--clients",
    callback=_numbers,
    default="16",
    help="How many clients send at a time, separated by commas. Each waits for its answer.",
)
@click.option(
    "--delay", "delay_ms", type=click.IntRange(0), default=10, help="max_batch_delay, in ms."
)
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(0, 86_400, min_open=True),
    callback=_finite,
    default=5.0,
    help="Seconds for each combination, after one to warm up.",
)
@management_option
@inference_option
@json_option
def bench(  # noqa: PLR0917 - click passes all of them by name
    archive: str,
    body: Path | None,
    batch_sizes: list[int],
    clients: list[int],
    delay_ms: int,
    duration_s: float,
    management_url: str,
    inference_url: str,
    as_json: bool,
) -> None:
    """Register ARCHIVE with each batch size in turn, send requests, and compare.

    This sends some thousands of requests a second at most; wrk and oha send more.

    With tokens on, FERRY_TOKEN is the management key, FERRY_INFERENCE_TOKEN the inference key.
    """
    content, kind = read_data(body or b"")
    headers = {"content-type": kind} if kind else {}
    with click_errors():
        if token := token_of(_INFERENCE_TOKEN_VARIABLE) or token_of(TOKEN_VARIABLE):
            headers["authorization"] = f"Bearer {token}"
    # A job's time limit ends it with SIGTERM, and a model left behind would keep its workers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plan = list(itertools.product(sorted({1, *batch_sizes}), clients))
    runs: list[dict[str, Any]] = []
    with Api(management_url) as api:
        for size, count in track(plan, "", console=err(), transient=True, disable=as_json):
            with _registered(api, archive, size, delay_ms) as name:
                url = f"{inference_url.rstrip('/')}/predictions/{name}"
                post = functools.partial(_post_until, url, content, headers)
                _drive(post, count, min(_WARMUP_S, duration_s))
                answers = _drive(post, count, duration_s)
            errors = [answer for answer in answers if isinstance(answer, str)]
            times_s = sorted(answer for answer in answers if isinstance(answer, float))
            if not runs and not times_s:
                raise click.ClickException(f"every request failed: {''.join(errors[:1])}")
            p50_ms, p99_ms = (
                1000 * times_s[math.ceil(share * len(times_s)) - 1] if times_s else 0.0
                for share in (0.5, 0.99)
            )
            runs.append(
                {
                    "batch_size": size,
                    "clients": count,
                    "requests_per_s": len(times_s) / duration_s,
                    "p50_ms": p50_ms,
                    "p99_ms": p99_ms,
                    "errors": len(errors),
                    "first_error": "".join(errors[:1]),
                }
            )
    if as_json:
        click.echo(json.dumps(runs, indent=2))
    else:
        _print(runs)


@contextlib.contextmanager
def _registered(api: Api, archive: str, size: int, delay_ms: int) -> Iterator[str]:
    """Registers the archive under a name of its own, and unregisters it."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    query = {"batch_size": size, "max_batch_delay": delay_ms, "initial_workers": 1}
    try:
        api.call("POST", "models", url=archive, model_name=name, synchronous="true", **query)
        yield name
    finally:
        # It may be there or not, if the registration was refused or interrupted.
        api.answer("DELETE", "models", name)


def _drive(post: Callable[[float], list[Answer]], clients: int, seconds: float) -> list[Answer]:
    """Returns all answers; each client sends its next request when it has an answer."""
    end_s = time.perf_counter() + seconds
    with ThreadPoolExecutor(clients) as pool:
        return list(itertools.chain.from_iterable(pool.map(post, [end_s] * clients)))


def _post_until(url: str, content: bytes, headers: dict[str, str], end_s: float) -> list[Answer]:
    """Sends one request after the other on one connection."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    answers: list[Answer] = []
    with contextlib.closing(kind(parts.netloc, timeout=_ANSWER_TIMEOUT_S)) as connection:
        while (begun_s := time.perf_counter()) < end_s:
            try:
                connection.request("POST", parts.path, content, headers)
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                answers.append(str(error) or type(error).__name__)
                time.sleep(_PAUSE_S)
                continue
            if response.status < _FIRST_ERROR:
                answers.append(time.perf_counter() - begun_s)
            else:
                answers.append(f"{response.status} {answer[:300].decode(errors='replace')}")
    return answers


def _print(runs: list[dict[str, Any]]) -> None:
    """Prints a row and a bar per run; `x single` compares it with batches of one."""
    single_per_s = {run["clients"]: run["requests_per_s"] for run in runs if run["batch_size"] == 1}
    most_per_s = max(run["requests_per_s"] for run in runs)
    rows = []
    for run in sorted(runs, key=lambda run: (run["clients"], run["batch_size"])):
        rate_per_s, single = run["requests_per_s"], single_per_s[run["clients"]]
        times = round(rate_per_s / single, 1) if single else "-"
        latencies = round(run["p50_ms"], 1), round(run["p99_ms"], 1)
        bar = "█" * round(_WIDEST_BAR * rate_per_s / most_per_s)
        rates = round(rate_per_s), times, *latencies
        rows.append((run["clients"], run["batch_size"], *rates, run["errors"], bar))
    print_table(_HEADS, rows)
    for run in runs:
        if run["errors"]:
            warn(f"batch size {run['batch_size']}, {run['clients']} clients: {run['first_error']}")
