"""`ferry serve`: a Python file, a model's file or an archive, with all that a server needs."""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from ferry.options import local_addresses, settings_from_flags
from ferry.process_tree.start_checks import check_free
from ferry.process_tree.whole_server import run_server
from ferry.serving.served_targets import read_targets, spec_fields
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
    fields = spec_fields(workers or 0, device)
    arguments = (target, *more)
    targets = read_targets(arguments)
    wants_reload = sys.stdout.isatty() if is_reloading is None else is_reloading
    is_followed = wants_reload and any(target.sources for target in targets)
    with tempfile.TemporaryDirectory(prefix="ferry-serve-") as folder:
        store = Path(folder) / "store"
        store.mkdir()
        flags = {
            **local_addresses(port),
            "config_snapshots": False,
            "log_level": "info" if verbose else "error",
            "show_tracebacks": True,  # only this machine asks
        }
        settings = replace(
            settings_from_flags(None, flags),
            redis_url="",
            model_store=store,
            data_dir=None,
            load_models="",
        )
        check_free(settings.addresses().values(), f"ferry serve {target} --port {port + 10}")
        if settings.work_dir is None and not any(target.is_archive for target in targets):
            settings = replace(settings, work_dir=Path(folder) / "work")
        session = Session(arguments, targets, fields, device, is_followed, is_opening)
        run_server(settings, is_restoring=False, occupant=session)
