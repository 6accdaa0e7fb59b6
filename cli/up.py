"""`ferry up`: Redis, ingress and one node in one process tree, for a laptop and for tests."""

from dataclasses import replace

import click

from batching.settings import Settings
from cli.options import settings_options
from cli.server import run_server


@click.command()
@settings_options
@click.option(
    "--port-base",
    type=click.IntRange(1, 65533),
    metavar="PORT",
    help="Listen on 127.0.0.1 at PORT (inference), PORT+1 (management) and PORT+2 (metrics).",
)
@click.option(
    "--redis-memory",
    default="0",
    show_default=True,
    metavar="SIZE",
    help="Memory limit of the embedded Redis, for example 512mb; 0: none.",
)
def up(settings: Settings, port_base: int | None, redis_memory: str) -> None:
    """Run the whole server here: Redis (unless --redis-url), ingress and one node."""
    if port_base is not None:
        settings = _with_ports(settings, port_base)
    run_server(settings, redis_memory=redis_memory)


def _with_ports(settings: Settings, base: int) -> Settings:
    return replace(
        settings,
        inference_address=f"http://127.0.0.1:{base}",
        management_address=f"http://127.0.0.1:{base + 1}",
        metrics_address=f"http://127.0.0.1:{base + 2}",
    )
