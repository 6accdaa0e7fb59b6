"""`ferry jobs`: predictions whose results are fetched later."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ferry.api import Api
from ferry.commands.job_files import (
    JobFiles,
    SentFile,
    complaint,
    files_in,
    without_result,
    write_result,
)
from ferry.commands.predict import (
    Prediction,
    answer_value,
    prediction_record,
    print_predictions,
)
from ferry.console import age_text, err, out
from ferry.options import (
    check_header_value,
    inference_option,
    json_option,
    management_option,
    version_option,
)
from ferry_client.async_client import AsyncClient
from ferry_client.calls import Options
from ferry_client.client import Client
from ferry_client.errors import FerryError, WaitTimeout

STATUSES = ("queued", "running", "succeeded", "failed", "cancelled", "expired")
# GET /jobs answers with at most this many at a time.
PAGE_SIZE = 1000

Sending: TypeAlias = Callable[[Callable[[SentFile], None]], Coroutine[Any, Any, list[SentFile]]]

id_argument = click.argument("job_id", metavar="ID")


@click.group()
def jobs() -> None:
    """Have predictions done later: submit, list, show, cancel and retry them."""


@jobs.command()
@click.argument("model")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(exists=True, path_type=Path),
)
@click.option("--wait", is_flag=True, help="Wait for the results and print them.")
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Wait, and write each result to FOLDER/<file name>, with a suffix for its content type.",
    metavar="FOLDER",
)
@version_option
@click.option(
    "--content-type",
    default="",
    callback=check_header_value,
    help="Of all files. Default: guessed from each file's name.",
)
@click.option("--priority", type=click.Choice(["normal", "high"]), help="Default: normal.")
@click.option(
    "--in-flight",
    type=click.IntRange(1, 10_000),
    default=64,
    show_default=True,
    help="So many files at most are under way.",
)
@inference_option
@json_option
def submit(  # noqa: PLR0917 - click passes all of them by name
    model: str,
    files: tuple[Path, ...],
    wait: bool,
    folder: Path | None,
    version: str,
    content_type: str,
    priority: Literal["normal", "high"] | None,
    in_flight: int,
    inference_url: str,
    as_json: bool,
) -> None:
    """Send each FILE to MODEL as a job; a folder stands for the files in it.

    The same file for the same model is one job for as long as the job is kept, so a command that
    was interrupted can be given again: nothing runs twice, and results that are in FOLDER are not
    fetched again. A job that failed or was cancelled stays so until `ferry jobs retry`.
    """
    found = files_in(files)
    missing = found if folder is None else without_result(found, folder)
    options = Options(version=version, content_type=content_type, priority=priority)

    async def send(on_end: Callable[[SentFile], None]) -> list[SentFile]:
        async with AsyncClient(inference_url) as client:
            waits = wait or folder is not None
            sender = JobFiles(
                client, model, options, in_flight=in_flight, waits=waits, folder=folder
            )
            return await sender.send(missing, on_end)

    sent = _with_progress(send, len(missing), inference_url)
    if folder is None and wait:
        _print_answers(sent, as_json)
    else:
        _print_sent(sent, folder, len(found) - len(missing), as_json)
    if any(one.error for one in sent):
        sys.exit(1)


@jobs.command(name="list")
@click.option("--model", default="", help="Only jobs of this model.")
@click.option("--status", type=click.Choice(STATUSES), help="Only jobs in this status.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most.")
@management_option
@json_option
def list_jobs(
    model: str, status: str | None, limit: int, management_url: str, as_json: bool
) -> None:
    """List the jobs of registered models, newest first."""
    with Api(management_url) as api:
        found = list(_newest(api, model, status, limit))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    if not found:
        click.echo("No jobs. `ferry jobs submit` adds one.")
        return
    _print_list(found)


@jobs.command()
@id_argument
@inference_option
@json_option
def show(job_id: str, inference_url: str, as_json: bool) -> None:
    """Show how the job ID is."""
    with Api(inference_url) as api:
        job = api.call("GET", "jobs", job_id)
    _print_job(job, as_json)


@jobs.command()
@id_argument
@click.option("--wait", is_flag=True, help="Wait until there is one.")
@click.option(
    "--out", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write it here."
)
@inference_option
def result(job_id: str, wait: bool, file: Path | None, inference_url: str) -> None:
    """Print the result of the job ID, as the model gave it."""
    try:
        with Client(inference_url) as client:
            job = client.job(job_id)
            answer = job.result(None if wait else 0)
    except WaitTimeout:
        raise click.ClickException(f"job {job_id} is {job.status}: --wait waits for it") from None
    except FerryError as error:
        raise complaint(error, inference_url) from error
    if file is None:
        click.echo(answer.content, nl=False)
    else:
        write_result(file, answer.content)


@jobs.command()
@id_argument
@inference_option
@json_option
def cancel(job_id: str, inference_url: str, as_json: bool) -> None:
    """Cancel the job ID; lets the result of one that is over go."""
    with Api(inference_url) as api:
        job = api.call("DELETE", "jobs", job_id)
    click.echo(json.dumps(job, indent=2) if as_json else f"Job {job_id} is {job['status']}.")


@jobs.command()
@id_argument
@management_option
@json_option
def retry(job_id: str, management_url: str, as_json: bool) -> None:
    """Let the job ID, which failed, expired or was cancelled, wait again."""
    with Api(management_url) as api:
        job = api.call("POST", "jobs", job_id, "retry")
    click.echo(json.dumps(job, indent=2) if as_json else f"Job {job_id} is {job['status']}.")


def _newest(api: Api, model: str, status: str | None, limit: int) -> Iterator[dict[str, Any]]:
    cursor: str | None = ""
    while cursor is not None and limit:
        count = min(limit, PAGE_SIZE)
        page = api.page("jobs", model=model, status=status, limit=count, cursor=cursor)
        yield from page["jobs"]
        limit -= len(page["jobs"])
        cursor = page.get("next_cursor")


def _print_list(found: Sequence[dict[str, Any]]) -> None:
    """Prints a line for each job, which fits 80 columns, and its error in lines of its own."""
    # What is piped is not broken.
    console = out(wraps=sys.stdout.isatty())
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("id", "model", "status", "age"):
        table.add_column(name, no_wrap=name != "model", overflow="fold")
    for job in found:
        tries = f", {count} tries" if (count := job.get("attempts", 0)) > 1 else ""
        status, model = f"{job['status']}{tries}", f"{job['model']} {job['version']}"
        table.add_row(job["id"], escape(model), status, age_text(job["created_at"]))
    console.print(table)
    for job in found:
        if message := job.get("error", {}).get("message", ""):
            console.print(f"[red]{escape(job['id'])}:[/] {escape(message)}")


def _with_progress(send: Sending, count: int, url: str) -> list[SentFile]:
    """Sends the files; on a terminal, shows how many have ended."""
    console = err()
    columns = (TextColumn("Jobs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    ended = 0
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=count)

        def on_end(_: SentFile) -> None:
            nonlocal ended
            ended += 1
            progress.update(task, completed=ended)

        try:
            return asyncio.run(send(on_end))
        except FerryError as error:
            raise complaint(error, url) from error
        except KeyboardInterrupt:
            raise click.ClickException(
                f"interrupted when {ended} of {count} were done; the same command goes on there"
            ) from None


def _print_answers(sent: Sequence[SentFile], as_json: bool) -> None:
    predictions = []
    for one in sent:
        if one.answer is None:
            predictions.append(Prediction(one.file, one.status, one.error))
        else:
            kind = one.answer.headers.get("content-type", "")
            value = answer_value(one.answer.content, kind)
            predictions.append(Prediction(one.file, one.answer.status, value, is_ok=True))
    if as_json:
        records = [
            {"job": one.job_id, **prediction_record(prediction)}
            for one, prediction in zip(sent, predictions, strict=True)
        ]
        click.echo(json.dumps(records, indent=2))
    else:
        print_predictions(predictions)


def _print_sent(sent: Sequence[SentFile], folder: Path | None, there: int, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([one.record() for one in sent], indent=2))
        return
    for one in sent:
        if one.error:
            of_job = f" (job {one.job_id})" if one.job_id else ""
            text = f"{one.file}: {one.error}{of_job}"
            err().print(escape(text), style="red", soft_wrap=True)
    if folder is not None:
        done = sum(one.result is not None for one in sent)
        before = f", {there} were there before" if there else ""
        noun = "result" if done == 1 else "results"
        click.echo(f"{done} {noun} written to {folder}{before}.")
        return
    table = Table("file", "job", box=None)
    for one in sent:
        if one.job_id:
            table.add_row(escape(one.file), one.job_id)
    if table.row_count:
        out().print(table)


def _print_job(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(job, indent=2))
        return
    table = Table(box=None, show_header=False)
    for name, value in job.items():
        is_group = isinstance(value, dict)
        text = ", ".join(f"{key} {part}" for key, part in value.items()) if is_group else value
        table.add_row(name.replace("_", " "), escape(str(text)))
    out().print(table)
