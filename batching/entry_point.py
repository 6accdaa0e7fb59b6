"""What `python -m ingress` and `python -m workers` do alike."""

import sys
from collections.abc import Callable

from batching.settings import Settings, SettingsError

EXIT_UNUSABLE = 2


def run_from_environment(run: Callable[[Settings], int]) -> int:
    """The exit code of a part that runs with the environment's settings."""
    try:
        settings, _ = Settings.load()
    except SettingsError as error:
        sys.stderr.write(f"cannot start: {error}\n")
        return EXIT_UNUSABLE
    return run(settings)
