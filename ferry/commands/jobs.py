"""`ferry jobs`: predictions whose results are fetched later."""

import concurrent.futures
import hashlib
import json
import mimetypes
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from ferry.api import Api, token_hint
from ferry.commands.predict import FileAnswer, answer_value, print_predictions
from ferry.console import age_text, ending_at_interrupt, err, out
from ferry.options import (
    check_header_value,
    inference_option,
    json_option,
    management_option,
    version_option,
)
from ferry_client import jobs as client_jobs
from ferry_client.calls import Options, guessed_type
from ferry_client.client import Client
from ferry_client.errors import (
    AnswerError,
    FerryError,
    NotFound,
    ServerUnreachable,
    Unauthorized,
    WaitTimeout,
)

STATUSES = ("queued", "running", "succeeded", "failed", "cancelled", "expired")
# What Python's table lacks, or has several of.
_SUFFIXES = {"application/json": ".json", "text/plain": ".txt", "image/jpeg": ".jpg"}
_UNFINISHED = ".ferry-"
_WRITING, _WRITE_S = threading.Lock(), 5.0

id_argument = click.argument("job_id", metavar="ID")


@click.group()
def jobs() -> None:
    """Submit predictions as jobs, fetch their answers later, and list, cancel or retry them."""


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
    help="Content type of all files. Default: guessed from each file's name.",
)
@click.option("--priority", type=click.Choice(["normal", "high"]), help="Default: normal.")
@click.option(
    "--in-flight",
    type=click.IntRange(1, 1000),
    default=64,
    show_default=True,
    help="How many files may be under way at once.",
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
    asked = files_in(files)
    missing = asked if folder is None else without_result(asked, folder)
    options = Options(version=version, content_type=content_type, priority=priority)
    ended: list[Path] = []

    def interruption() -> str:
        _WRITING.acquire(timeout=_WRITE_S)  # to leave no part of a file
        done = f"{len(ended)} of {len(missing)}"
        return f"interrupted when {done} were done; the same command goes on there"

    def send(client: Client, file: Path) -> SentFile:
        sent = _sent(client, model, file, options, folder, waits=wait or folder is not None)
        ended.append(file)
        return sent

    pool = concurrent.futures.ThreadPoolExecutor(in_flight)
    with Client(inference_url) as client, ending_at_interrupt(interruption):
        console = err()
        sending = [pool.submit(send, client, file) for file in missing]
        shown = track(sending, "Jobs", console=console, disable=not console.is_terminal)
        try:
            sent = [future.result() for future in shown]
        except FerryError as error:  # of the server, the model or the token
            pool.shutdown(cancel_futures=True)
            raise _complaint(error, inference_url) from error
    _print_sent(sent, folder, len(asked) - len(missing), waits=wait, as_json=as_json)
    if not all(file.is_ok for file in sent):
        sys.exit(1)


@jobs.command(name="list")
@click.option("--model", default="", help="Only jobs of this model.")
@click.option("--status", type=click.Choice(STATUSES), help="Only jobs in this status.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Most jobs shown."
)
@management_option
@json_option
def list_jobs(
    model: str, status: str | None, limit: int, management_url: str, as_json: bool
) -> None:
    """List the jobs of registered models, newest first."""
    with Api(management_url) as api:
        listed = api.page("jobs", model=model, status=status, limit=limit)["jobs"]
    if as_json:
        click.echo(json.dumps(listed, indent=2))
    elif listed:
        _print_list(listed)
    else:
        click.echo("No jobs. `ferry jobs submit` adds one.")


@jobs.command()
@id_argument
@inference_option
@json_option
def show(job_id: str, inference_url: str, as_json: bool) -> None:
    """Show what the server knows of the job ID."""
    job = _call(inference_url, "GET", job_id)
    if as_json:
        click.echo(json.dumps(job, indent=2))
        return
    table = Table(box=None, show_header=False)
    for name, value in job.items():
        is_group = isinstance(value, dict)
        text = ", ".join(f"{key} {part}" for key, part in value.items()) if is_group else value
        table.add_row(name.replace("_", " "), escape(str(text)))
    out().print(table)


@jobs.command()
@id_argument
@click.option("--wait", is_flag=True, help="Wait until there is a result.")
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
        raise _complaint(error, inference_url) from error
    if file is None:
        click.echo(answer.content, nl=False)
    else:
        write_result(file, answer.content)


@jobs.command()
@id_argument
@inference_option
@json_option
def cancel(job_id: str, inference_url: str, as_json: bool) -> None:
    """Cancel the job ID; if it has ended, delete its result."""
    _print_status(_call(inference_url, "DELETE", job_id), as_json)


@jobs.command()
@id_argument
@management_option
@json_option
def retry(job_id: str, management_url: str, as_json: bool) -> None:
    """Queue the job ID again after it failed, expired or was cancelled."""
    _print_status(_call(management_url, "POST", job_id, "retry"), as_json)


# --- files on their way


class SentFile(NamedTuple):
    """Keeps one file's job, and its answer or error; `result` is a path."""

    file: str
    job: str = ""
    result: str = ""
    status: int | None = None
    answer: Any = None
    error: str = ""

    @property
    def is_ok(self) -> bool:
        return not self.error


def _sent(
    client: Client, model: str, file: Path, options: Options, folder: Path | None, *, waits: bool
) -> SentFile:
    """Sends one file; raises FerryError only where every other file would fail, too."""
    options = Options(**options)
    options["content_type"] = options.get("content_type") or guessed_type(file.name)
    name, job_id = str(file), ""
    try:
        content = file.read_bytes()
        key = idempotency_key(model, options, file.name, content)
        job = client.submit(model, content, idempotency_key=key, **options)
        job_id = job.id
        del content
        if not waits:
            return SentFile(name, job_id)
        answer = job.result()
        if folder is None:
            value = answer_value(answer.content, answer.headers.get("content-type", ""))
            return SentFile(name, job_id, status=answer.status, answer=value)
        path = folder / f"{file.name}{suffix_of(answer)}"
        write_result(path, answer.content)
        return SentFile(name, job_id, str(path))
    except FerryError as error:
        if not job_id and isinstance(error, (ServerUnreachable, Unauthorized, NotFound)):
            raise
        status, text = getattr(error, "status", None), getattr(error, "message", str(error))
        return SentFile(name, job_id, status=status, error=text)
    except OSError as error:
        return SentFile(name, error=f"{error.strerror or error}")


def idempotency_key(model: str, options: Options, file_name: str, content: bytes) -> str:
    """Returns a key that is the same for the same file, model and options, so that it runs once."""
    names = [model, options.get("version") or "", options.get("content_type") or "", file_name]
    digest = hashlib.sha256(json.dumps(names).encode())
    digest.update(content)
    return f"ferry-{digest.hexdigest()}"


def suffix_of(answer: client_jobs.Prediction) -> str:
    kind = answer.content_type
    return _SUFFIXES.get(kind) or mimetypes.guess_extension(kind) or ".out"


def write_result(path: Path, content: bytes) -> None:
    """Writes the file as a whole or not at all."""
    # In the same folder, because a rename cannot leave a file system.
    unfinished = path.with_name(f"{_UNFINISHED}{uuid.uuid4().hex}")
    try:
        with _WRITING:
            unfinished.write_bytes(content)
            unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def without_result(files: Iterable[Path], folder: Path) -> list[Path]:
    """Returns the files that have no result in the folder, which is made if need be."""
    files = list(files)
    folder.mkdir(parents=True, exist_ok=True)
    if any(file.parent.resolve() == folder.resolve() for file in files):
        raise click.ClickException(
            f"results need a folder of their own, and {folder} has the files"
        )
    twice = [name for name, count in Counter(file.name for file in files).items() if count > 1]
    if twice:
        raise click.ClickException(
            f"several files are called {twice[0]}: one result would replace another"
        )
    written = {path.stem for path in folder.iterdir() if not path.name.startswith(_UNFINISHED)}
    return [file for file in files if file.name not in written]


def files_in(paths: Iterable[Path]) -> list[Path]:
    """Returns the files; in place of a folder, the files in it, sorted by name."""
    files: list[Path] = []
    for path in paths:
        files += sorted(filter(Path.is_file, path.iterdir())) if path.is_dir() else [path]
    return files


# --- the server


def _complaint(error: FerryError, url: str) -> click.ClickException:
    """Returns the error as the command reports it; `url` is the inference listener's."""
    if isinstance(error, AnswerError) and not error.type:
        try:
            with Api(url) as api:
                api.answer("GET", "readyz")
        except click.ClickException as wrong:
            return wrong
    return click.ClickException(f"{error}{token_hint() if isinstance(error, Unauthorized) else ''}")


def _call(url: str, method: str, *path: str) -> dict[str, Any]:
    with Api(url) as api:
        job: dict[str, Any] = api.call(method, "jobs", *path)
    return job


# --- what is printed


def _print_status(job: dict[str, Any], as_json: bool) -> None:
    click.echo(json.dumps(job, indent=2) if as_json else f"Job {job['id']} is {job['status']}.")


def _print_list(listed: Sequence[dict[str, Any]]) -> None:
    """Prints a line of up to 80 columns for each job, then the errors."""
    # What is piped is not broken.
    console = out(wraps=sys.stdout.isatty())
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("id", "model", "status", "age"):
        table.add_column(name, no_wrap=name != "model", overflow="fold")
    for job in listed:
        tries = f", {count} tries" if (count := job.get("attempts", 0)) > 1 else ""
        status, model = f"{job['status']}{tries}", f"{job['model']} {job['version']}"
        table.add_row(job["id"], escape(model), status, age_text(job["created_at"]))
    console.print(table)
    for job in listed:
        if message := job.get("error", {}).get("message", ""):
            console.print(f"[red]{escape(job['id'])}:[/] {escape(message)}")


def _print_sent(
    sent: Sequence[SentFile], folder: Path | None, old_results: int, *, waits: bool, as_json: bool
) -> None:
    if as_json:
        known = [{name: value for name, value in it._asdict().items() if value} for it in sent]
        click.echo(json.dumps(known, indent=2))
        return
    if waits and folder is None:
        print_predictions(
            [FileAnswer(it.file, it.status, it.error or it.answer, is_ok=it.is_ok) for it in sent]
        )
        return
    for file in filter(lambda file: file.error, sent):
        of_job = f" (job {file.job})" if file.job else ""
        err().print(escape(f"{file.file}: {file.error}{of_job}"), style="red", soft_wrap=True)
    if folder is None:
        table = Table("file", "job", box=None)
        for file in filter(lambda file: file.job, sent):
            table.add_row(escape(file.file), file.job)
        if table.row_count:
            out().print(table)
    else:
        done = sum(file.is_ok for file in sent)
        before = f", {old_results} were there before" if old_results else ""
        click.echo(f"{done} result{'s' * (done != 1)} written to {folder}{before}.")
