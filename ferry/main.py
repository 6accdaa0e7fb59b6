"""The `ferry` command."""

import io
import os
import sys

import click

from ferry.lazy_commands import LazyGroup

_STDERR = 2
# What becomes of the output of a server must not end it, nor keep it from starting.
_SERVERS = frozenset({"ingress", "node", "serve", "torchserve", "up"})


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="torchferry", prog_name="ferry")
def main() -> None:
    """Serve PyTorch models in batches from a Redis queue.

    \b
    For example, in two terminals:
      ferry serve model.py
      curl localhost:8080/predictions/model -d '[1, 2, 3, 4]'

    `ferry COMMAND --help` tells more of each.
    """  # noqa: D301 - click's mark of lines that stay as they are
    _open_missing_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escapes characters that standard output cannot encode, as standard error does.
        sys.stdout.reconfigure(errors="backslashreplace")
    if click.get_current_context().invoked_subcommand in _SERVERS:
        # Only here: no other command needs any part of a server.
        from batching.process.outputs import free_outputs  # noqa: PLC0415

        free_outputs()


def _open_missing_streams() -> None:
    """Opens /dev/null in place of each standard stream that this process was started without.

    Otherwise the next file or socket gets number 1 or 2, and what C code and children print there
    goes into it: into the connection to Redis, for example. Neither Python nor click prevents that.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", closefd=False)


if __name__ == "__main__":
    main()
