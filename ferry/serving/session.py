"""Adds to a server what `ferry serve` has: models, what is said of them, and reload.

A save may be a rename, come in two writes, or come while the one before it is still loading, whose
version is then given up. What cannot be read or loaded is shown, and the old version serves on.
"""

import threading
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batching.errors import ServeError
from batching.process.part import notify_ready
from batching.settings.settings import Settings
from ferry.console import spinner
from ferry.process_tree.supervisor import Supervisor
from ferry.serving.announcement import announcement
from ferry.serving.python_file import TargetError
from ferry.serving.served_targets import WITHOUT_CODE, RunFlags, ServedTarget, read_targets

if TYPE_CHECKING:
    from ferry.serving.live_models import LiveModels

# Editors write a file in several steps; a quiet moment ends a save.
_QUIET_MS = 60
_LONGEST_SAVE_MS = 400
# How often workers and queues are looked at, while a version loads or retires.
_LOOK_MS = 50
_IDLE_MS = 60_000
_RETRY_S = 0.5
_SUFFIXES = frozenset({".py", ".data", *WITHOUT_CODE})


@dataclass(slots=True)
class Session:
    """Serves some targets, which the command was given as `texts`."""

    texts: Sequence[str]
    targets: Sequence[ServedTarget]
    flags: RunFlags
    is_reloading: bool
    is_opening: bool
    _models: "LiveModels" = field(init=False)
    # Model -> fingerprint of the files that were loaded last, whatever came of it.
    _prints: dict[str, str] = field(default_factory=dict)
    _complaint: str = ""
    _base_url: str = ""

    def begin(self, settings: Settings) -> None:
        """Registers the models: workers load while the ingress starts."""
        # The client of Redis loads meanwhile, too.
        from ferry.serving.live_models import LiveModels  # noqa: PLC0415

        self._models = LiveModels(settings, self.flags)
        self._base_url = settings.inference_address.replace("127.0.0.1", "localhost")
        self._load(self.targets)

    def announce(self, supervisor: Supervisor) -> None:
        """Waits for the models, and says how to use them.

        Raises:
            ClickException: one does not load, and no save will be waited for.
        """
        with spinner(f"Loading {', '.join(self._models.loading)}"):
            supervisor.wait_until(self._has_settled)
        self._take_over()
        notify_ready()
        if self.is_reloading:
            threading.Thread(target=self._follow, name="reload", daemon=True).start()
            _say("Saved changes are loaded by themselves.")
        _say("Ctrl-C ends.")
        if self.is_opening:
            # Some browsers end only when they are closed.
            threading.Thread(target=webbrowser.open, args=(self._base_url,), daemon=True).start()

    def _has_settled(self) -> bool:
        found = [self._models.look_at(spec) for spec, _ in self._models.loading.values()]
        return any(live.error for live in found) or not any(live.is_loading for live in found)

    def _load(self, targets: Sequence[ServedTarget]) -> None:
        """Begins to load those whose files are not as they were loaded last."""
        prints = {target.name: target.fingerprint() for target in targets}
        changed = [one for one in targets if self._prints.get(one.name) != prints[one.name]]
        self.targets, self._prints, self._complaint = targets, prints, ""
        self._models.keep_only(prints)
        for target in changed:
            try:
                self._models.load(target)
            except TargetError as error:
                self._complain(error.message)

    def _take_over(self) -> None:
        """Has the versions serve that have loaded, and shows why others have not."""
        for name, (spec, since_s) in list(self._models.loading.items()):
            live = self._models.look_at(spec)
            if live.error:
                self._models.give_up(name)
                self._complain(f"{spec.model_name} did not load.\n{live.error}")
            elif not live.is_loading:
                is_first = name not in self._models.serving
                self._models.take_over(name)
                seconds = time.monotonic() - since_s
                again = f"{spec.model_name} {spec.model_version} serves after {seconds:.1f} s"
                _say(announcement(live, self._base_url) if is_first else again)

    def _follow(self) -> None:
        from watchfiles._rust_notify import RustNotify  # noqa: PLC0415 - only here

        folders: set[str] = set()
        is_due = False
        while True:
            try:
                # An editor may put another file in a file's place, so folders are watched.
                sources = [path for one in self.targets for path in one.sources.values()]
                if (now := {str(path.parent) for path in sources}) != folders:
                    watcher = RustNotify(list(now), False, False, 0, False, False)
                    folders, is_due = now, True
                is_due = self._has_changed(watcher, is_due) or is_due
                if is_due:
                    self._load(read_targets(self.texts))
                    is_due = False
                self._take_over()
                self._models.remove_retired()
            except TargetError as error:
                is_due = False
                self._complain(error.message)
            except (ServeError, OSError) as error:  # Redis or a folder is away for a moment
                self._complain(f"cannot reload: {error}")
                time.sleep(_RETRY_S)

    def _has_changed(self, watcher: Any, is_due: bool) -> bool:
        """Waits for a change of a file; only a moment while there is something else to do."""
        is_busy = is_due or self._models.loading or self._models.retiring
        timeout_ms = _LOOK_MS if is_busy else _IDLE_MS
        changes = watcher.watch(_LONGEST_SAVE_MS, _QUIET_MS, timeout_ms, None)
        return isinstance(changes, set) and any(
            Path(path).suffix in _SUFFIXES for _, path in changes
        )

    def _complain(self, text: str) -> None:
        if not self.is_reloading:
            raise click.ClickException(text)
        if text != self._complaint:
            self._complaint = text
            specs = self._models.serving.values()
            names = ", ".join(f"{spec.model_name} {spec.model_version}" for spec in specs)
            still = f"Still served: {names}. " if names else ""
            _say(f"{text}\n{still}Waiting for the next save.", is_error=True)


def _say(text: str, *, is_error: bool = False) -> None:
    click.echo(text, err=is_error)
