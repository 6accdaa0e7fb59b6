"""`ferry up`: Redis, ingress and one node in one process tree, for a laptop and for tests."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import click
from rich.markup import escape
from rich.table import Table

from batching.child_process import spawn
from batching.readiness import READY_VARIABLE
from batching.settings import Settings
from cli.addresses import check_free
from cli.embedded_redis import (
    START_TIMEOUT_S,
    EmbeddedRedis,
    EmbeddedRedisError,
    find_server,
)
from cli.options import err, out, settings_options
from cli.ready_pipe import ReadyPipe
from cli.supervisor import Interrupted, Part, StartFailed, Supervisor

# How the time for a clean stop is divided: the ingress waits for answers in flight, the node then
# has little left to finish, Redis nothing. The rest is for the operating system.
INGRESS_SHARE, NODE_SHARE, REDIS_SHARE = 0.6, 0.25, 0.05
# A child begins to give up a little before its supervisor gives it up.
_CHILD_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Readiness:
    """What the children say of themselves."""

    node: ReadyPipe
    ingress: ReadyPipe

    def close(self) -> None:
        """Nobody listens any more."""
        self.node.close()
        self.ingress.close()


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
    if settings.model_store is not None:
        if not settings.model_store.is_dir():
            raise click.ClickException(f"the model store is not a folder: {settings.model_store}")
        settings = replace(settings, model_store=settings.model_store.absolute())
    if (keys_path := settings.keys_path()) is not None:
        settings = replace(settings, key_file=keys_path.absolute())
    check_free((settings.inference_address, settings.management_address, settings.metrics_address))
    with contextlib.ExitStack() as cleanup:
        redis = None if settings.redis_url else _embedded_redis(redis_memory)
        if redis is not None:
            cleanup.callback(redis.remove_folder)
            settings = replace(settings, redis_url=redis.url)
        ready = Readiness(ReadyPipe(), ReadyPipe())
        cleanup.callback(ready.close)
        supervisor = Supervisor(
            _parts(settings, redis, ready),
            stop_timeout_s=settings.drain_timeout_s,
            report=lambda line: err().print(escape(line)),
        )
        cleanup.enter_context(supervisor)
        _serve(supervisor, settings, redis, ready)


def _serve(
    supervisor: Supervisor, settings: Settings, redis: EmbeddedRedis | None, ready: Readiness
) -> None:
    try:
        _start(supervisor, settings, redis, ready)
        _announce(settings, redis, ready)
        supervisor.run()
    except Interrupted:
        pass
    except StartFailed as error:
        supervisor.stop()
        raise click.ClickException(f"{error}; the lines above say why") from error
    except (TimeoutError, OSError) as error:
        supervisor.stop()
        raise click.ClickException(f"cannot start: {error}") from error
    err().print(f"Stopping on {supervisor.stop_reason}.")
    supervisor.stop()


def _start(
    supervisor: Supervisor, settings: Settings, redis: EmbeddedRedis | None, ready: Readiness
) -> None:
    if redis is not None:
        supervisor.start("redis")
        supervisor.wait_until(redis.answers, timeout_s=START_TIMEOUT_S)
    supervisor.start("node", "ingress")
    models = f" and loading {settings.load_models}" if settings.load_models else ""
    with _spinner(f"Starting{models}"):
        # Registering a model takes a node, so the server has started only when there is one.
        for pipe in (ready.node, ready.ingress):
            supervisor.wait_until(pipe.poll, pipe.read_fd)


@contextlib.contextmanager
def _spinner(text: str) -> Iterator[None]:
    console = err()
    # Only for people: in a log file a spinner is noise.
    with console.status(escape(text)) if console.is_terminal else contextlib.nullcontext():
        yield


def _announce(settings: Settings, redis: EmbeddedRedis | None, ready: Readiness) -> None:
    for failure in ready.ingress.failures:
        words = ": ".join(str(value) for value in failure.values())
        err().print(f"[red]not loaded:[/] {escape(words)}", soft_wrap=True)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("Inference", settings.inference_address)
    table.add_row("Management", settings.management_address)
    table.add_row("Metrics", settings.metrics_address)
    if (keys_path := settings.keys_path()) is not None:
        table.add_row("Tokens", f"in {escape(str(keys_path))}")
    table.add_row("Models", escape(settings.load_models) or "none yet: `ferry models register`")
    table.add_row("Redis", _redis_words(settings, redis))
    out().print(table)
    # The line that scripts written for TorchServe wait for.
    click.echo("Model server started.")
    sys.stdout.flush()


def _redis_words(settings: Settings, redis: EmbeddedRedis | None) -> str:
    if redis is not None:
        return f"embedded, {redis.program.origin}"
    parts = urlsplit(settings.redis_url)
    # The URL may hold a password, and this line may end in a log.
    return escape(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())


def _embedded_redis(maxmemory: str) -> EmbeddedRedis:
    try:
        return EmbeddedRedis(find_server(), maxmemory=maxmemory)
    except EmbeddedRedisError as error:
        raise click.ClickException(str(error)) from error


def _parts(settings: Settings, redis: EmbeddedRedis | None, ready: Readiness) -> list[Part]:
    drain_s = settings.drain_timeout_s * _CHILD_SHARE

    def launch_node() -> subprocess.Popen[bytes]:
        own = replace(settings, drain_timeout_s=drain_s * NODE_SHARE)
        return _launch("workers", own, ready.node)

    def launch_ingress() -> subprocess.Popen[bytes]:
        own = replace(settings, drain_timeout_s=drain_s * INGRESS_SHARE)
        return _launch("ingress", own, ready.ingress)

    parts = [
        Part("node", launch_node, NODE_SHARE),
        Part("ingress", launch_ingress, INGRESS_SHARE),
    ]
    return parts if redis is None else [Part("redis", redis.launch, REDIS_SHARE), *parts]


def _launch(package: str, settings: Settings, ready: ReadyPipe) -> subprocess.Popen[bytes]:
    env = {**os.environ, **settings.to_environment()}
    env.pop(READY_VARIABLE, None)
    fds = ready.writer()
    for fd in fds:
        env[READY_VARIABLE] = str(fd)
    # -P: a folder `workers` in the user's current directory must not be run instead of ours.
    process = spawn([sys.executable, "-P", "-m", package], env, fds)
    ready.hand_over()
    return process


def _with_ports(settings: Settings, base: int) -> Settings:
    return replace(
        settings,
        inference_address=f"http://127.0.0.1:{base}",
        management_address=f"http://127.0.0.1:{base + 1}",
        metrics_address=f"http://127.0.0.1:{base + 2}",
    )
