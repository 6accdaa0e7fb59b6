"""Starts the parts: an ingress or a node, by `ferry` or by `python -m`."""

import logging
from collections.abc import Callable

from batching.process.logs import configure_logging
from batching.settings.loading import load_settings
from batching.settings.settings import Settings, SettingsError, UnusableNow

EXIT_UNUSABLE = 2
_EXIT_UNUSABLE_NOW = 1


def run_part(run: Callable[[Settings], int], settings: Settings | None = None) -> int:
    """Runs a part with these settings, or the environment's; returns its exit code.

    That is 2 if no start with these settings can succeed, 1 if a later one may.
    """
    try:
        if settings is None:
            settings, _ = load_settings()
        configure_logging(settings.log_level)
        return run(settings)
    except SettingsError as error:
        logging.getLogger(run.__module__).error("cannot start: %s", error)
        return _EXIT_UNUSABLE_NOW if isinstance(error, UnusableNow) else EXIT_UNUSABLE
