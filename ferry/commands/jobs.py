"""`ferry jobs`: predictions whose results are fetched later."""

import hashlib
import json
import mimetypes
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

from ferry.api import Api, click_errors
from ferry.commands.predict import FileAnswer, answer_value, failed, print_answers, send_all
from ferry.console import print_table
from ferry.options import (
    content_type_option,
    inference_option,
    json_option,
    management_option,
    version_option,
)
from ferry_client.calls import Options, guessed_type
from ferry_client.client import Client
from ferry_client.errors import FerryError, NotFound, ServerUnreachable, WaitTimeout

_STATUSES = ("queued", "running", "succeeded", "failed", "cancelled", "expired")
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
@content_type_option
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
    asked = [
        file
        for path in files
        for file in (sorted(filter(Path.is_file, path.iterdir())) if path.is_dir() else (path,))
    ]
    missing = asked if folder is None else _without_result(asked, folder)

    def send(file: Path) -> FileAnswer:
        options = Options(version=version, priority=priority)
        options["content_type"] = content_type or guessed_type(file.name)
        return _sent(client, model, file, options, folder, waits=wait or folder is not None)

    def rest() -> str:
        """Waits for the file that is being written, and lets no other begin: none stays a part."""
        _WRITING.acquire(timeout=_WRITE_S)
        return "The same command goes on there."

    with click_errors(inference_url), Client(inference_url) as client:
        sent = send_all(send, missing, in_flight, rest)
    print_answers(sent, as_json=as_json)
    if folder is not None and not as_json:
        done, before = sum(not it.error for it in sent), len(asked) - len(missing)
        old = f", {before} were there before" if before else ""
        click.echo(f"{done} result{'s' * (done != 1)} written to {folder}{old}.")
    elif not wait and not as_json:
        print_table(("file", "job"), [(it.file, it.job) for it in sent if it.job])
    if any(it.error for it in sent):
        sys.exit(1)


def _sent(
    client: Client, model: str, file: Path, options: Options, folder: Path | None, *, waits: bool
) -> FileAnswer:
    """Sends one file; raises FerryError only where every other file would fail, too."""
    name, job_id = str(file), None
    try:
        content = file.read_bytes()
        key = idempotency_key(model, options, file.name, content)
        job = client.submit(model, content, idempotency_key=key, **options)
        job_id = job.id
        del content  # thousands of files may wait
        if not waits:
            return FileAnswer(name, job_id)
        answer = job.result()
        if folder is None:
            return FileAnswer(name, job_id, answer.status, answer_value(answer))
        kind = answer.content_type
        suffix = _SUFFIXES.get(kind) or mimetypes.guess_extension(kind) or ".out"
        path = folder / f"{file.name}{suffix}"
        write_result(path, answer.content)
        return FileAnswer(name, job_id, result=str(path))
    except FerryError as error:
        if job_id is None and isinstance(error, (ServerUnreachable, NotFound)):
            raise
        return failed(name, error, job_id)
    except OSError as error:
        return FileAnswer(name, error=f"{error.strerror or error}")


def _without_result(files: Sequence[Path], folder: Path) -> list[Path]:
    """Returns the files that have no result in the folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(file.parent.resolve() == folder.resolve() for file in files):
        raise click.ClickException(
            f"results need a folder of their own, and {folder} has the files"
        )
    for name, count in Counter(file.name for file in files).items():
        if count > 1:
            raise click.ClickException(
                f"several files are called {name}: one result would replace another"
            )
    written = {path.stem for path in folder.iterdir() if not path.name.startswith(_UNFINISHED)}
    return [file for file in files if file.name not in written]


def idempotency_key(model: str, options: Options, file_name: str, content: bytes) -> str:
    """Returns a key that is the same for the same file, model and options, so that it runs once."""
    names = [model, options.get("version") or "", options.get("content_type") or "", file_name]
    digest = hashlib.sha256(json.dumps(names).encode())
    digest.update(content)
    return f"ferry-{digest.hexdigest()}"


def write_result(path: Path, content: bytes) -> None:
    """Writes the file as a whole or not at all."""
    # In the same folder, because a rename cannot leave a file system.
    unfinished = path.with_name(f"{_UNFINISHED}{path.name}")
    try:
        with _WRITING:
            unfinished.write_bytes(content)
            unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@jobs.command(name="list")
@click.option("--model", default="", help="Only jobs of this model.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only jobs in this status.")
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
        listed = api.call("GET", "jobs", model=model, status=status, limit=limit)["jobs"]
    if as_json:
        click.echo(json.dumps(listed, indent=2))
        return
    if not listed:
        click.echo("No jobs. `ferry jobs submit` adds one.")
    rows = []
    for job in listed:
        tries = f", {count} tries" if (count := job.get("attempts", 0)) > 1 else ""
        words = f"{job['model']} {job['version']}", f"{job['status']}{tries}", job["created_at"]
        rows.append((job["id"], *words, job.get("error", {}).get("message", "")))
    print_table(("id", "model", "status", "created", "error"), rows)


@jobs.command()
@id_argument
@inference_option
def show(job_id: str, inference_url: str) -> None:
    """Print what the server knows of the job ID, as JSON."""
    with Api(inference_url) as api:
        click.echo(json.dumps(api.call("GET", "jobs", job_id), indent=2))


@jobs.command()
@id_argument
@click.option("--wait", is_flag=True, help="Wait until there is a result.")
@inference_option
def result(job_id: str, wait: bool, inference_url: str) -> None:
    """Print the result of the job ID, as the model gave it."""
    with click_errors(inference_url), Client(inference_url) as client:
        job = client.job(job_id)
        try:
            answer = job.result(None if wait else 0)
        except WaitTimeout:
            complaint = f"job {job_id} is {job.status}: --wait waits for it"
            raise click.ClickException(complaint) from None
    click.echo(answer.content, nl=False)


@jobs.command()
@id_argument
@inference_option
def cancel(job_id: str, inference_url: str) -> None:
    """Cancel the job ID; if it has ended, delete its result."""
    with Api(inference_url) as api:
        job = api.call("DELETE", "jobs", job_id)
    click.echo(f"Job {job_id} is {job['status']}.")


@jobs.command()
@id_argument
@management_option
def retry(job_id: str, management_url: str) -> None:
    """Queue the job ID again after it failed, expired or was cancelled."""
    with Api(management_url) as api:
        job = api.call("POST", "jobs", job_id, "retry")
    click.echo(f"Job {job_id} is {job['status']}.")
