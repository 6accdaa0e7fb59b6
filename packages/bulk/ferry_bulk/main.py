"""Runs the command `ferry-bulk`, which answers clients and feeds batches to a server."""

import argparse
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import waitress

from ferry_bulk.app import FORM_BYTES, BulkApp
from ferry_bulk.batch_run import BatchRun
from ferry_bulk.feeder import Feeder
from ferry_bulk.folder import BulkFolder
from ferry_bulk.model_server import ModelServer

log = logging.getLogger("ferry_bulk")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until it is told to stop; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # more clients than threads
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _serve(options)
    except (OSError, ValueError) as error:
        log.error("%s", error)
        return 1
    return 0


def _serve(options: argparse.Namespace) -> None:
    folder = BulkFolder(options.folder)
    read_token = partial(_read_token, options.token_file, "FERRY_TOKEN")
    server = ModelServer(options.server, read_token)
    token = _read_token(options.require_token_file, "FERRY_BULK_TOKEN")
    host, _, port = options.listen.rpartition(":")
    with folder.taken():
        # Uploads are here until they are complete; /tmp may be in memory.
        tempfile.tempdir = str(folder.path)
        web = waitress.create_server(
            BulkApp(folder, max_file_bytes=options.max_file_size, token=token),
            host=host.strip("[]"),
            port=int(port),
            threads=8,
            ident="ferry-bulk",
            # Slightly larger uploads get a refusal of ours, once they have arrived.
            max_request_body_size=2 * (options.max_file_size + FORM_BYTES),
        )
        if not token and host.strip("[]") not in {"127.0.0.1", "::1", "localhost"}:
            log.warning("whoever reaches %s may run batches: no token is required", options.listen)
        feeder = Feeder(folder, lambda batch: BatchRun(batch, folder, server, options.in_flight))
        threading.Thread(target=feeder.run, name="feeder", daemon=True).start()
        log.info("ferry-bulk listens at http://%s, and feeds %s", options.listen, options.server)
        web.run()  # until SystemExit or KeyboardInterrupt, which it takes for a wish to stop
        log.info("ferry-bulk stops")
        # A hard exit loses nothing, and threads may wait for the server for a while.
        os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ferry-bulk", description="Runs files of inputs on a torchferry server."
    )
    for name, kind, default, about in (
        ("--folder", Path, None, "folder of files and batches; required"),
        ("--server", str, "http://127.0.0.1:8080", "URL of the server's predictions"),
        ("--listen", str, "127.0.0.1:8083", "HOST:PORT for clients"),
        ("--token-file", Path, None, "file of the server's inference token; else FERRY_TOKEN"),
        ("--require-token-file", Path, None, "file of the clients' token; else FERRY_BULK_TOKEN"),
        ("--in-flight", _positive, 128, "lines of a batch at the server at once"),
        ("--max-file-size", _positive, 10**9, "largest upload, in bytes"),
    ):
        text = f"{about} [default: {default}]" if default else about
        parser.add_argument(
            name, type=kind, default=default, help=text, required=name == "--folder"
        )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a whole number, 1 or more: {text}")
    return int(text)


def _read_token(path: Path | None, variable: str) -> str:
    # Not from an option: every user of a machine can read its command lines.
    text = os.environ.get(variable, "") if path is None else path.read_text(encoding="utf-8")
    token = text.strip()
    if not (token.isascii() and token.isprintable()):
        raise ValueError(f"{path or variable} has characters that no token has")
    return token


if __name__ == "__main__":
    sys.exit(main())
