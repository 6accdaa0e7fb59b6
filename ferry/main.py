"""The `ferry` command."""

import importlib.metadata
import os
import re
import sys
from typing import Any

import click

from ferry.commands.archive import archive
from ferry.commands.bench import bench
from ferry.commands.doctor import doctor
from ferry.commands.models import models
from ferry.commands.predict import predict
from ferry.commands.roles import ingress, node
from ferry.commands.status import status
from ferry.commands.torchserve import torchserve
from ferry.commands.up import up
from ferry.standard_streams import (
    escape_what_output_lacks,
    is_about_output,
    let_go_of_output,
    open_missing_streams,
)

_SURROGATES = re.compile("[\ud800-\udfff]")


class _Ferry(click.Group):
    """Says in one sentence what may keep any command from its work."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except UnicodeEncodeError as error:
            # Python reads bytes that are no UTF-8, in arguments and names of files, as surrogates.
            if not _SURROGATES.search(error.object):
                raise
            click.echo(f"Error: this is not UTF-8: {error.object!r}", err=True)
            sys.exit(1)
        except OSError as error:
            if is_about_output(error):
                let_go_of_output()
                click.echo(f"Error: cannot write: {error.strerror}", err=True)
            elif _is_nowhere():
                click.echo("Error: the current folder is not there any more", err=True)
            else:
                raise
            sys.exit(1)


def _is_nowhere() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() is no more than that
    except FileNotFoundError:
        return True
    return False


@click.group(cls=_Ferry, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("torchferry"), prog_name="ferry")
def main() -> None:
    """Serve PyTorch models in batches from a Redis queue."""
    open_missing_streams()
    escape_what_output_lacks()


for command in (up, ingress, node, status, models, predict, archive, doctor, torchserve, bench):
    main.add_command(command)


if __name__ == "__main__":
    main()
