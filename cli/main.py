"""The `ferry` command."""

import importlib.metadata
import sys
from typing import Any

import click

from cli.archive import archive
from cli.bench import bench
from cli.doctor import doctor
from cli.models import models
from cli.predict import predict
from cli.roles import ingress, node
from cli.status import status
from cli.streams import (
    escape_what_output_lacks,
    is_about_output,
    let_go_of_output,
    open_missing_streams,
)
from cli.torchserve import torchserve
from cli.up import up


class _Ferry(click.Group):
    """Says in one sentence that its output cannot be written, whichever command printed it."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if not is_about_output(error):
                raise
            let_go_of_output()
            click.echo(f"Error: cannot write: {error.strerror}", err=True)
            sys.exit(1)


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
