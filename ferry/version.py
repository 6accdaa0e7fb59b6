"""Says which version runs here, and of which commit. hatch_build.py runs this file, too."""

import importlib.metadata
import subprocess
from pathlib import Path

# In wheels and source distributions, which hatch_build.py writes it into.
COMMIT_FILE = Path(__file__).with_name("commit.txt")
_CHECKOUT = Path(__file__).parents[1]


def commit() -> str:
    """Returns the commit of this code; empty: nothing here knows it.

    It ends in `-dirty` if files of the checkout differ from that commit.
    """
    if COMMIT_FILE.is_file():
        return COMMIT_FILE.read_text(encoding="utf-8").strip()
    if not (_CHECKOUT / ".git").exists():
        return ""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed argument list
            words, cwd=_CHECKOUT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):  # no git, or it does not trust the folder
        return ""
    return done.stdout.strip()


def version_line() -> str:
    """Returns what `ferry --version` prints."""
    version = importlib.metadata.version("torchferry")
    known = commit()
    return f"ferry, version {version}" + (f" (commit {known})" if known else "")
