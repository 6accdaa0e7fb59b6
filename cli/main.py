"""The `ferry` command."""

import importlib.metadata

import click

from cli.archive import archive
from cli.bench import bench
from cli.doctor import doctor
from cli.models import models
from cli.predict import predict
from cli.roles import ingress, node
from cli.status import status
from cli.streams import open_missing_streams
from cli.torchserve import torchserve
from cli.up import up


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("torchferry"), prog_name="ferry")
def main() -> None:
    """Serve PyTorch models in batches from a Redis queue."""
    open_missing_streams()


for command in (up, ingress, node, status, models, predict, archive, doctor, torchserve, bench):
    main.add_command(command)


if __name__ == "__main__":
    main()
