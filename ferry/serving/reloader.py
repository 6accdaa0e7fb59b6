"""Loads a target anew when it, or a module beside it, is saved; the old version serves until then.

A save may be a rename, come in two writes, or come while the one before it is still loading, whose
version is then given up. What cannot be read or loaded is shown, and changes nothing.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from watchfiles import watch

from batching.errors import ServeError
from batching.models.spec import ModelSpec
from ferry.serving.live_models import LiveModel, LiveModels, LoadFailed, Superseded
from ferry.serving.python_source import TargetError
from ferry.serving.served_targets import WITHOUT_CODE, ServedTarget, read_targets

# Editors write a file in several steps; a quiet moment ends a save.
_QUIET_MS = 60
_LONGEST_SAVE_MS = 400
_LOOK_MS = 50
_RETRY_S = 0.5
_SUFFIXES = frozenset({".py", ".data", *WITHOUT_CODE})


class Reloader:
    """Follows the files of some targets, in a thread of its own.

    Args:
        models: the running server's.
        texts: the targets as the command was given them.
        targets: what they are; what serves is in `models` already.
        prints: the fingerprints of their files when they were registered.
        on_served: is told of each version that has taken over, and after how many seconds.
        on_broken: is told what cannot be read or loaded.
    """

    def __init__(
        self,
        models: LiveModels,
        texts: Sequence[str],
        targets: Sequence[ServedTarget],
        prints: Mapping[str, str],
        *,
        on_served: Callable[[LiveModel, float], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self._models = models
        self._texts = texts
        self._targets = targets
        self._on_served = on_served
        self._on_broken = on_broken
        # Model -> fingerprint of the files that were loaded last, whatever came of it.
        self._tried = dict(prints)
        self._complaint = ""
        self._changes: Iterator[object] = iter(())
        self._folders: frozenset[Path] = frozenset()
        self._is_due = False

    def start(self) -> None:
        """Begins to follow the files; ends with the process."""
        threading.Thread(target=self._run, name="reloader", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self._follow_folders()
                if self._has_changed():
                    self._is_due = False
                    self._reload()
                self._models.remove_retired()
            except (ServeError, OSError) as error:  # Redis or a folder is away for a moment
                self._is_due, self._tried = True, {}
                self._complain(f"cannot reload: {error}")
                time.sleep(_RETRY_S)

    def _follow_folders(self) -> None:
        """Watches the folders of all files: an editor may put another file in a file's place."""
        sources = [path for target in self._targets for path in target.sources.values()]
        folders = frozenset(path.parent for path in sources)
        if folders != self._folders:
            self._changes = watch(
                *folders,
                watch_filter=lambda _, path: Path(path).suffix in _SUFFIXES,
                debounce=_LONGEST_SAVE_MS,
                step=_QUIET_MS,
                rust_timeout=_LOOK_MS,
                yield_on_timeout=True,
                raise_interrupt=False,
                recursive=False,
            )
            next(self._changes)
            self._folders, self._is_due = folders, True

    def _has_changed(self) -> bool:
        """Waits a moment for a change; returns whether there is one that nothing was done about."""
        self._is_due = bool(next(self._changes)) or self._is_due
        return self._is_due

    def _reload(self) -> None:
        try:
            targets, prints = self._read()
        except TargetError as error:
            self._complain(error.message)
            return
        self._complaint = ""
        self._targets = targets
        for name in self._models.serving.keys() - prints.keys():
            self._models.drop(name)
        changed = [one for one in targets if self._tried.get(one.name) != prints[one.name]]
        self._tried = prints
        self._load(changed)

    def _read(self) -> tuple[list[ServedTarget], dict[str, str]]:
        """Returns the targets and their fingerprints, as their files are now.

        Raises:
            TargetError: there are none to serve.
        """
        try:
            targets = read_targets(self._texts)
            return targets, {one.name: one.fingerprint() for one in targets}
        except OSError as error:
            raise TargetError(str(error)) from error

    def _load(self, targets: Sequence[ServedTarget]) -> None:
        """Loads the targets side by side; each takes over as soon as it is ready."""
        since = time.monotonic()
        loading: dict[str, ModelSpec] = {}
        try:
            for target in targets:
                loading[target.name] = self._models.register(target)
            for name, spec in list(loading.items()):
                self._await(spec, since)
                del loading[name]
        except TargetError as error:
            self._complain(error.message)
        except Superseded:
            for name in loading:
                del self._tried[name]
        finally:
            for spec in loading.values():
                self._models.give_up(spec)

    def _await(self, spec: ModelSpec, since: float) -> None:
        try:
            live = self._models.wait(spec, self._is_superseded)
        except LoadFailed as error:
            self._on_broken(str(error))
            return
        self._models.take_over(live)
        self._on_served(live, time.monotonic() - since)

    def _is_superseded(self) -> bool:
        self._models.remove_retired()
        if not self._has_changed():
            return False
        try:
            return self._read()[1] != self._tried
        except TargetError:
            return False  # which is said when this version has loaded

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            self._on_broken(text)
