"""What `ferry serve` adds to a server: its models, what it says of them, and reload."""

import contextlib
import sys
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import click

from batching.models.spec import ModelSpec
from batching.process.readiness import notify_ready
from batching.settings.settings import Settings
from batching.store.clients import connect
from batching.store.registry.registry import Registry
from ferry.console import spinner
from ferry.process_tree.supervisor import Supervisor
from ferry.serving.announcement import announcement
from ferry.serving.live_models import LiveModel, LiveModels, LoadFailed
from ferry.serving.reloader import Reloader
from ferry.serving.served_targets import RunFlags, ServedTarget


@dataclass(slots=True)
class Session:
    """Serves some targets as the occupant of a server.

    Attributes:
        texts: the targets as the command was given them.
        targets: what they are.
        flags: how they are to run, whatever they say themselves.
        is_reloading: whether saves are followed.
        is_opening: whether a browser is opened.
    """

    texts: Sequence[str]
    targets: Sequence[ServedTarget]
    flags: RunFlags
    is_reloading: bool
    is_opening: bool
    _models: LiveModels = field(init=False)
    _specs: list[ModelSpec] = field(default_factory=list)
    _prints: Mapping[str, str] = field(default_factory=dict)
    _base_url: str = ""
    # Names of the models that were introduced at length.
    _said: set[str] = field(default_factory=set)

    def begin(self, settings: Settings) -> None:
        """Registers the models: workers load while the ingress starts."""
        registry = Registry(connect(settings.redis_url))
        self._models = LiveModels(registry, settings, self.flags)
        self._base_url = settings.inference_address.replace("127.0.0.1", "localhost")
        # Before: a save from now on is one to load.
        self._prints = {target.name: target.fingerprint() for target in self.targets}
        self._specs = [self._models.register(target) for target in self.targets]

    def announce(self, supervisor: Supervisor) -> None:
        """Waits for the models, and says how to use them.

        Raises:
            ClickException: one does not load, and no save will be waited for.
        """
        for spec in self._specs:
            self._wait_for(spec, supervisor)
        notify_ready()
        if self.is_reloading and any(target.sources for target in self.targets):
            Reloader(
                self._models,
                self.texts,
                self.targets,
                self._prints,
                on_served=self._say_served,
                on_broken=self._say_broken,
            ).start()
            _say("Saved changes are loaded by themselves. Ctrl-C ends.")
        else:
            _say("Ctrl-C ends.")
        if self.is_opening:
            # Some browsers end only when they are closed.
            threading.Thread(target=webbrowser.open, args=(self._base_url,), daemon=True).start()

    def _wait_for(self, spec: ModelSpec, supervisor: Supervisor) -> None:
        def pause() -> bool:
            turns = iter((False, True))
            supervisor.wait_until(lambda: next(turns))
            return False

        try:
            with spinner(f"Loading {spec.model_name}"):
                live = self._models.wait(spec, pause)
        except LoadFailed as error:
            if not self.is_reloading:
                raise click.ClickException(str(error)) from error
            self._say_broken(str(error))
            return
        self._models.take_over(live)
        self._introduce(live)

    def _introduce(self, live: LiveModel) -> None:
        self._said.add(live.spec.model_name)
        _say(announcement(live, self._base_url))

    def _say_served(self, live: LiveModel, seconds: float) -> None:
        if live.spec.model_name in self._said:
            _say(f"{live.spec.model_name} {live.spec.model_version} serves after {seconds:.1f} s")
        else:
            self._introduce(live)

    def _say_broken(self, text: str) -> None:
        _say(f"{text}\n{self._what_serves()}", is_error=True)

    def _what_serves(self) -> str:
        specs = [one.spec for one in self._models.serving.values()]
        names = ", ".join(f"{spec.model_name} {spec.model_version}" for spec in specs)
        return f"{f'Still served: {names}. ' if names else ''}Waiting for the next save."


def _say(text: str, *, is_error: bool = False) -> None:
    with contextlib.suppress(OSError):  # the terminal may have gone; the server stays
        click.echo(text, err=is_error)
        sys.stdout.flush()
