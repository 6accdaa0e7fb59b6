"""`ferry up`, `ferry ingress` and `ferry node`: the whole server, or one part, in the foreground.

Each command imports its part itself, so that no process loads the other one's dependencies: an
ingress has no torch and a node no flask.
"""

import sys
from dataclasses import replace

import click

from batching.process.part import run_part
from batching.settings.settings import Settings
from ferry.options import ServerCommand, local_addresses, settings_options
from ferry.process_tree.embedded_redis import FSYNC_ALWAYS, FSYNC_EVERY_SECOND
from ferry.process_tree.start_checks import allow_many_files, require_store


@click.command(cls=ServerCommand)
@settings_options
@click.option(
    "--port-base",
    type=click.IntRange(1, 65533),
    metavar="PORT",
    help="Listen on 127.0.0.1 at PORT (inference), PORT+1 (management) and PORT+2 (metrics), "
    "whatever else is set.",
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
    from ferry.process_tree.whole_server import run_server  # noqa: PLC0415 - see above

    if port_base is not None:
        settings = replace(settings, **local_addresses(port_base))
    # Somebody waits at the terminal. Containers start in any order: other commands wait for it.
    run_server(settings, redis_memory=redis_memory, redis_fsync=redis_fsync, needs_redis=True)


@click.command(cls=ServerCommand)
@settings_options
def ingress(settings: Settings) -> None:
    """Run the HTTP server only. Needs a Redis: --redis-url or REDIS_URL."""
    _require_redis(settings)
    allow_many_files()
    if settings.ingress_processes > 1:
        from ferry.process_tree.whole_server import run_ingresses  # noqa: PLC0415 - see above

        run_ingresses(settings)
        return
    from ingress.server import run  # noqa: PLC0415 - see above

    sys.exit(run_part(run, settings))


@click.command(cls=ServerCommand)
@settings_options
def node(settings: Settings) -> None:
    """Run this machine's workers only. Needs a Redis: --redis-url or REDIS_URL."""
    _require_redis(settings)
    require_store(settings)
    allow_many_files()
    from workers.node.node import run  # noqa: PLC0415 - see above

    sys.exit(run_part(run, settings))


def _require_redis(settings: Settings) -> None:
    if not settings.redis_url:
        raise click.UsageError(
            "which Redis? Pass --redis-url redis://host:6379 or set REDIS_URL. "
            "(`ferry up` brings one of its own.)"
        )
