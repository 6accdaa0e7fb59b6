"""`ferry serve`: a Python file, a model's file or an archive, with all that a server needs."""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ferry.options import settings_from_flags
from ferry.process_tree.whole_server import run_server
from ferry.serving.live_models import device_fields
from ferry.serving.served_targets import read_targets
from ferry.serving.session import Session


@click.command()
@click.argument("target", required=True)
@click.argument("more", nargs=-1)
@click.option("--workers", type=click.IntRange(1, 1024), metavar="N", help="Workers per model.")
@click.option(
    "--port",
    type=click.IntRange(1, 65533),
    default=8080,
    show_default=True,
    metavar="P",
    help="Predictions at 127.0.0.1:P; management at P+1, metrics at P+2.",
)
@click.option("--device", default="", metavar="D", help="cpu, cuda, cuda:1 or mps.")
@click.option(
    "--reload/--no-reload",
    "is_reloading",
    default=None,
    help="Load saved changes.  [default: in a terminal]",
)
@click.option("--open", "is_opening", is_flag=True, help="Open the page in a browser.")
@click.option("--verbose", is_flag=True, help="Show the log, too.")
def serve(  # noqa: PLR0917 - click passes them by name
    target: str,
    more: Sequence[str],
    workers: int | None,
    port: int,
    device: str,
    is_reloading: bool | None,
    is_opening: bool,
    verbose: bool,
) -> None:
    """Serve TARGET here: FILE.py, .onnx, .pt2, .pt (TorchScript), .mar, or hf:NAME.

    A file serves its function `predict`, functions under @ferry.model, and classes of ferry.Model;
    FILE.py:NAME picks one.
    """
    texts = (target, *more)
    targets = read_targets(texts)
    fields = device_fields(device) if device else {}
    if workers is not None:
        fields |= {"min_worker": workers, "max_worker": workers}
    if is_reloading is None:
        is_reloading = sys.stdout.isatty()
    with tempfile.TemporaryDirectory(prefix="ferry-serve-") as folder:
        settings = _settings(port, Path(folder), "info" if verbose else "error")
        session = Session(texts, targets, fields, is_reloading, is_opening)
        run_server(settings, is_restoring=False, occupant=session)


def _settings(port: int, folder: Path, log_level: str) -> Any:
    names = ("inference", "management", "metrics")
    addresses = {
        f"{name}_address": f"http://127.0.0.1:{port + place}" for place, name in enumerate(names)
    }
    flags = {
        "config_snapshots": False,
        "log_level": log_level,
        "show_tracebacks": True,  # only this machine asks
        **addresses,
    }
    settings = settings_from_flags(None, flags)
    store = folder / "store"
    store.mkdir()
    return replace(settings, redis_url="", model_store=store, data_dir=None)
