"""`python -m ingress`: an ingress with its settings from the environment."""

import sys

from batching.settings import Settings, SettingsError
from ingress.server import run


def main() -> int:
    """The exit code of the server."""
    try:
        settings, _ = Settings.load()
    except SettingsError as error:
        sys.stderr.write(f"cannot start: {error}\n")
        return 2
    return run(settings)


if __name__ == "__main__":
    sys.exit(main())
