"""`ferry models`: the management API as commands."""

import concurrent.futures
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import httpx
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from batching.models.registration import SERVING
from batching.models.spec import PARAMETERS
from ferry.api import Api, ApiError
from ferry.console import ending_at_interrupt, err, out, spinner
from ferry.next_step import next_step, registering_goes_on
from ferry.options import inference_option, json_option, management_option, version_option

POLL_S = 0.3
# GET /models answers at most this many names at a time.
PAGE_SIZE = 100

Command = TypeVar("Command", bound=Callable[..., Any])

wait_option = click.option(
    "--wait/--no-wait", default=True, help="Wait until the workers have loaded."
)


def parameter_options(command: Command) -> Command:
    """Adds an option for each model parameter that a registration may have."""
    for one in reversed([one for one in PARAMETERS if one.rest]):
        name = f"--{one.rest.replace('_', '-')}"
        kind = click.Choice(one.choices) if one.choices else one.kind
        unit = one.unit.upper() or None
        command = click.option(name, type=kind, metavar=unit, help=one.doc.replace("`", ""))(
            command
        )
    return command


@click.group()
def models() -> None:
    """Register, scale, describe and remove models."""


@models.command()
@click.argument("url")
@click.option("--model-name", help="Name to register it under. Default: the archive's.")
@click.option("--handler", help="Handler to run instead of the archive's.")
@parameter_options
@wait_option
@management_option
@inference_option
@json_option
def register(
    url: str,
    wait: bool,
    management_url: str,
    inference_url: str,
    as_json: bool,
    **parameters: Any,
) -> None:
    """Register the archive URL: a file in the model store, or an https address.

    Unless the archive or an option says otherwise, it gets one worker, and batches of up to 8
    under the adaptive policy.
    """
    query = {"url": url, "synchronous": str(wait).lower(), "defaults": SERVING, **parameters}

    def what_goes_on() -> str:
        asked = parameters["model_name"]
        return registering_goes_on(url, asked, management_url, lambda: _name_of(api, url))

    with Api(management_url) as api:
        with ending_at_interrupt(what_goes_on):
            answer = _watched(api, url, query, is_quiet=as_json)
        _print_status(answer, as_json)
        if not as_json:
            click.echo(next_step(api, answer["status"], management_url, inference_url), nl=False)


@models.command()
@click.argument("model")
@click.option("--min-worker", type=int, required=True, help="Workers per node.")
@click.option("--max-worker", type=int, help="Default: the same as --min-worker.")
@version_option
@wait_option
@management_option
@json_option
def scale(
    model: str, version: str, wait: bool, management_url: str, as_json: bool, **workers: Any
) -> None:
    """Set how many workers each node runs for MODEL."""
    with Api(management_url) as api, spinner(f"Scaling {model}", is_quiet=as_json or not wait):
        path = filter(None, ("models", model, version))
        answer = api.call("PUT", *path, synchronous=str(wait).lower(), **workers)
    _print_status(answer, as_json)


@models.command()
@click.argument("model")
@click.option("--version", default="all", help="Version of the model. Default: all.")
@management_option
@json_option
def describe(model: str, version: str, management_url: str, as_json: bool) -> None:
    """Show the settings, the queue and the workers of MODEL."""
    with Api(management_url) as api:
        versions = api.call("GET", "models", model, version)
    if as_json:
        click.echo(json.dumps(versions, indent=2))
        return
    for record in versions:
        _print_version(record)


@models.command(name="list")
@management_option
@json_option
def list_models(management_url: str, as_json: bool) -> None:
    """List the registered models, with all their versions."""
    with Api(management_url) as api:
        if as_json:
            click.echo(json.dumps(all_models(api), indent=2))
            return
        found = all_versions(api)
    if not found:
        click.echo("No models. `ferry models register` adds one.")
        return
    table = Table("model", "version", "archive", box=None)
    for record in found:
        row = (record["modelName"], marked_version(record), record["modelUrl"])
        table.add_row(*(escape(cell) for cell in row))
    out().print(table)


@models.command()
@click.argument("model")
@version_option
@management_option
@json_option
def unregister(model: str, version: str, management_url: str, as_json: bool) -> None:
    """Remove a version of MODEL, with its workers.

    The default version can only be removed when it is the last one.
    """
    with Api(management_url) as api:
        answer = api.call("DELETE", *filter(None, ("models", model, version)))
    _print_status(answer, as_json)


@models.command(name="set-default")
@click.argument("model")
@click.argument("version")
@management_option
@json_option
def set_default(model: str, version: str, management_url: str, as_json: bool) -> None:
    """Let requests for MODEL without a version go to VERSION."""
    with Api(management_url) as api:
        answer = api.call("PUT", "models", model, version, "set-default")
    _print_status(answer, as_json)


def all_models(api: Api) -> list[dict[str, str]]:
    """Lists every registered model, page by page, sorted by name."""
    found: list[dict[str, str]] = []
    start: str | None = "0"
    while start is not None:
        page = api.page("models", limit=PAGE_SIZE, next_page_token=start)
        found += page["models"]
        start = page.get("nextPageToken") if page["models"] else None
    return found


def all_versions(api: Api) -> list[dict[str, Any]]:
    """Describes every version of every registered model."""
    found: list[dict[str, Any]] = []
    for model in all_models(api):
        try:
            found += api.call("GET", "models", model["modelName"], "all")
        except ApiError as error:
            # It may have been unregistered since it was listed.
            if error.status != httpx.codes.NOT_FOUND:
                raise
    return found


def marked_version(record: dict[str, Any]) -> str:
    """Returns the name of a described version, marked if it is the model's default."""
    return f"{record['modelVersion']}{' (default)' if record.get('isDefault') else ''}"


def worker_states(record: dict[str, Any]) -> dict[str, int]:
    """Counts the workers of a described version by their states."""
    return dict(Counter(map(_state, record.get("workers", ()))))


def errors_of(record: dict[str, Any]) -> list[str]:
    """Returns why a described version, or some of its workers, could not be loaded."""
    found = (record.get("error"), *(worker.get("error") for worker in record.get("workers", ())))
    # Each once: most errors keep all workers from loading.
    return list(dict.fromkeys(filter(None, found)))


def _state(worker: dict[str, Any]) -> str:
    return str(worker.get("state") or worker["status"])


def _watched(api: Api, url: str, query: dict[str, Any], *, is_quiet: bool) -> Any:
    """Registers a model and returns the answer; on a terminal, shows how far it has come."""
    console = err()
    if is_quiet or not console.is_terminal:
        return api.call("POST", "models", **query)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    answer = pool.submit(api.call, "POST", "models", **query)
    pool.shutdown(wait=False)  # Ctrl-C does not wait for the answer
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, amount="")
        while not answer.done():
            progress.update(task, **registration_stage(api, url))
            concurrent.futures.wait([answer], timeout=POLL_S)
        return answer.result()


def _name_of(api: Api, url: str) -> str:
    return next((one["modelName"] for one in all_models(api) if one["modelUrl"] == url), "")


def registration_stage(api: Api, url: str) -> dict[str, Any]:
    """Returns how far the registration has come, as fields of a progress bar."""
    # Only decoration: the registration's own answer tells what has gone wrong.
    with contextlib.suppress(click.ClickException):
        for model in all_models(api):
            if model["modelUrl"] == url:
                return _loading(api.call("GET", "models", model["modelName"])[0])
        for download in api.call("GET", "downloads"):
            if download["url"] == url:
                return _downloading(download)
    return {"description": f"Checking {escape(url)}", "total": None, "amount": ""}


def _loading(record: dict[str, Any]) -> dict[str, Any]:
    ready, wanted = worker_states(record).get("READY", 0), record["minWorkers"]
    text, amount = f"Loading workers of {escape(record['modelName'])}", f"{ready}/{wanted}"
    return {"description": text, "total": wanted, "completed": ready, "amount": amount}


def _downloading(record: dict[str, Any]) -> dict[str, Any]:
    done, total = record["done_bytes"], record["total_bytes"] or None
    amount = f"{done / 1e6:.1f}" + (f"/{total / 1e6:.1f} MB" if total else " MB")
    text = f"Downloading {escape(record['url'])}"
    return {"description": text, "total": total, "completed": done, "amount": amount}


def _print_status(answer: dict[str, Any], as_json: bool) -> None:
    click.echo(json.dumps(answer, indent=2) if as_json else answer["status"])


def _print_version(record: dict[str, Any]) -> None:
    console = out()
    queue = record.get("jobQueueStatus", {})
    version = escape(marked_version(record))
    console.print(f"[bold]{escape(record['modelName'])}[/] version {version}")
    facts = {
        "archive": record["modelUrl"],
        "batch": f"{record['batchSize']}, at most {record['maxBatchDelay']} ms",
        "workers per node": f"{record['minWorkers']} to {record['maxWorkers']}",
        "response timeout": f"{record['responseTimeout']} s",
        "waiting": f"{queue.get('pendingRequests')}, room for {queue.get('remainingCapacity')}",
    }
    table = Table(box=None, show_header=False)
    for name, value in facts.items():
        table.add_row(name, escape(str(value)))
    console.print(table)
    _print_workers(record.get("workers", ()))
    for error in errors_of(record):
        console.print(f"[red]not started:[/] {escape(error)}")


def _print_workers(workers: Sequence[dict[str, Any]]) -> None:
    table = Table("worker", "state", "pid", "device", "memory", "since", box=None)
    for worker in workers:
        device = "gpu" if worker.get("gpu") else "cpu"
        memory_mib = f"{worker.get('memoryUsage', 0) / 2**20:.0f} MiB"
        row = (worker["id"], _state(worker), worker.get("pid", ""), device, memory_mib)
        table.add_row(*(escape(str(cell)) for cell in row), worker.get("startTime", ""))
    if table.row_count:
        out().print(table)
    hosts = {worker["node"]: worker["host"] for worker in workers if worker.get("host")}
    for node, host in hosts.items():
        out().print(f"node {escape(node)} on {escape(host)}")
