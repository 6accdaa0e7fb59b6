"""The demo: builds the archive, starts a server, registers the model, asks it; stays until Ctrl-C.

    python -m examples.digits.run --folder .demo

Exit code 0 when it was stopped by Ctrl-C or SIGTERM; the server is gone by then, all of it.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from batching.process.child_process import kill_group, spawn

# `ferry up` stops within 8 s by itself.
STOP_TIMEOUT_S = 8.5
STARTED = b"Model server started."


class Interrupted(Exception):
    """Ctrl-C or SIGTERM."""


def interrupt(*_: object) -> None:
    """Interrupts the main thread, once: later signals must not disturb the stop."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise Interrupted


@contextlib.contextmanager
def foreground() -> Iterator[None]:
    """Takes the terminal's Ctrl-C from the `make` that started this process.

    make would end by the signal itself and report an orderly stop as a failure.
    """
    group = os.getpgrp()
    if group == os.getpid() or not os.isatty(0) or os.tcgetpgrp(0) != group:
        yield
        return
    # SIGTTOU: sent to a background process that changes the terminal's foreground group.
    # SIGTSTP: only make could be resumed.
    for number in (signal.SIGTTOU, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    try:
        yield
    finally:
        # The terminal may be gone, and that may be why this ends.
        with contextlib.suppress(OSError):
            os.tcsetpgrp(0, group)


class Demo:
    """Runs a server and shows what it does."""

    def __init__(self, folder: Path, port_base: int, console: Console) -> None:
        self._store = folder / "model_store"
        self._work = folder / "work"
        self._port_base = port_base
        self._console = console
        self._server: subprocess.Popen[bytes] | None = None

    def show(self) -> None:
        """Starts the server, registers the model and asks it; the server goes on."""
        self._store.mkdir(parents=True, exist_ok=True)
        self._say("Training a small network on handwritten digits (a few seconds)")
        self._run("examples.digits.build", "--model-store", str(self._store))
        self._say("Starting the server: ferry up")
        self._start()
        self._say("Registering the model: one worker, batches of up to 16 within 10 ms")
        management = self._address(1)
        self._run(
            *("ferry.main", "models", "register", "digits.mar", "--initial-workers", "1"),
            *("--batch-size", "16", "--max-batch-delay", "10", "--management-url", management),
        )
        self._say("Asking it: 64 digits, 16 clients at once")
        self._run("examples.digits.demo", "--address", self._address(0))
        self._console.print(
            f"\nStill serving at {self._address(0)}/predictions/digits. [bold]Ctrl-C stops it.[/]"
        )

    def wait(self) -> int:
        """Waits until the server ends by itself; returns its exit code."""
        return self._server.wait() if self._server else 0

    def stop(self) -> None:
        """Stops the server and all its processes."""
        if self._server is None:
            return
        if self._server.returncode is None:
            self._server.terminate()
            try:
                self._server.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                kill_group(self._server)
        if self._server.stdout is not None:
            self._server.stdout.close()

    def _start(self) -> None:
        self._server = spawn(
            [
                *(sys.executable, "-m", "ferry.main", "up", "--port-base", str(self._port_base)),
                *("--model-store", str(self._store), "--work-dir", str(self._work)),
                *("--log-level", "warning", "--no-config-snapshots"),
            ],
            dict(os.environ),
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        for line in self._server.stdout:
            self._console.print(line.decode().rstrip(), markup=False)
            if line.startswith(STARTED):
                # Later lines must not fill the pipe and block the server.
                threading.Thread(target=self._server.stdout.read, daemon=True).start()
                return
        raise SystemExit(self._server.wait() or 1)

    def _run(self, module: str, *arguments: str) -> None:
        # Its own session, so Ctrl-C reaches this process alone and the child ends with it.
        child = spawn([sys.executable, "-m", module, *arguments], dict(os.environ))
        try:
            if child.wait() != 0:
                raise SystemExit(f"{module} failed with exit code {child.returncode}")
        finally:
            kill_group(child)

    def _address(self, offset: int) -> str:
        return f"http://127.0.0.1:{self._port_base + offset}"

    def _say(self, text: str) -> None:
        self._console.print(f"\n[bold]{text}[/]")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo until a signal stops it; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(".demo"))
    parser.add_argument("--port-base", type=int, default=8080, help="inference; then management")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    console = Console(highlight=False)
    demo = Demo(options.folder, options.port_base, console)
    with foreground():
        try:
            demo.show()
            return demo.wait()
        except Interrupted:
            console.print("\nStopping.")
            return 0
        finally:
            demo.stop()


if __name__ == "__main__":
    sys.exit(main())
