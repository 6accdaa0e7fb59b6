"""`ferry ingress` and `ferry node`: one part of the server in the foreground.

Each command imports its part itself, so that no process loads the other one's dependencies: an
ingress has no torch and a node no flask.
"""

import sys

import click

from batching.process.part import run_part
from batching.settings.settings import Settings
from ferry.options import ServerCommand, settings_options
from ferry.process_tree.start_checks import allow_many_files, require_store


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
