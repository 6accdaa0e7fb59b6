"""Holds the common part of `python -m ingress` and `python -m workers`."""

import sys
from collections.abc import Callable

from batching.settings.loading import load_settings
from batching.settings.settings import Settings, SettingsError, UnusableNow

EXIT_UNUSABLE = 2
_EXIT_UNUSABLE_NOW = 1


def exit_code_for(error: SettingsError) -> int:
    """Returns 2 if no start with these settings can succeed, 1 if a later one may."""
    return _EXIT_UNUSABLE_NOW if isinstance(error, UnusableNow) else EXIT_UNUSABLE


def run_from_environment(run: Callable[[Settings], int]) -> int:
    """Runs a part with the environment's settings; returns its exit code."""
    try:
        settings, _ = load_settings()
    except SettingsError as error:
        sys.stderr.write(f"cannot start: {error}\n")
        return EXIT_UNUSABLE
    return run(settings)
