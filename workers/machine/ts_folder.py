"""Finds the folder in which handlers find the package `ts`."""

from pathlib import Path

_WORKERS = Path(__file__).resolve().parents[1]


def ts_folder() -> Path:
    """Returns the folder that holds `ts`: beside this package in a checkout, within it in a wheel.

    A wheel must not put a package called `compat` into a user's site-packages.
    """
    installed = _WORKERS / "compat"
    return installed if installed.is_dir() else _WORKERS.parent / "compat"
