"""`ferry up`: Redis, ingress and one node in one process tree, for a laptop and for tests."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from batching.settings.settings import Settings
from ferry.options import ServerCommand, settings_options
from ferry.process_tree.embedded_redis import FSYNC_ALWAYS, FSYNC_EVERY_SECOND
from ferry.process_tree.whole_server import run_server

_ADDRESSES = ("inference_address", "management_address", "metrics_address")


@click.command(cls=ServerCommand)
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
@click.option(
    "--redis-fsync",
    type=click.Choice([FSYNC_EVERY_SECOND, FSYNC_ALWAYS]),
    default=FSYNC_EVERY_SECOND,
    show_default=True,
    help="When the embedded Redis has the disk confirm what it wrote: a machine that fails loses a "
    "second of accepted jobs, or none, and each request waits for the disk.",
)
def up(settings: Settings, port_base: int | None, redis_memory: str, redis_fsync: str) -> None:
    """Run the whole server here: Redis (unless --redis-url), ingress and one node."""
    if port_base is not None:
        _refuse_addresses(click.get_current_context().params)
        settings = _with_ports(settings, port_base)
    # Somebody waits at the terminal. Containers start in any order: other commands wait for it.
    run_server(settings, redis_memory=redis_memory, redis_fsync=redis_fsync, needs_redis=True)


def _refuse_addresses(given: Mapping[str, Any]) -> None:
    # Flags only: --port-base overrides the addresses of a file or the environment.
    flags = [f"--{name.replace('_', '-')}" for name in _ADDRESSES if given[name] is not None]
    if flags:
        raise click.UsageError(f"--port-base and {', '.join(flags)} do not go together: which one?")


def _with_ports(settings: Settings, base: int) -> Settings:
    return replace(
        settings,
        inference_address=f"http://127.0.0.1:{base}",
        management_address=f"http://127.0.0.1:{base + 1}",
        metrics_address=f"http://127.0.0.1:{base + 2}",
    )
