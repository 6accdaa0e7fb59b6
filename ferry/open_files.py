"""Raises the limit of files, connections among them, that a server may have open at once."""

import contextlib
import resource

from ferry.console import warn

# A node holds two descriptors per worker and an ingress two per connection of a client.
_ENOUGH_FILES = 1_024
# Some programs, which a handler may start, close every descriptor that they might have. Where the
# hard limit is a billion, as in some containers, that takes them minutes.
_MOST_FILES = 1_048_576


def allow_many_files() -> None:
    """Lets this process and its children open many files; warns if too few are allowed."""
    if (allowed := raise_open_files()) < _ENOUGH_FILES:
        warn(
            f"only {allowed} files may be open at once, connections included, and a server needs "
            f"{_ENOUGH_FILES} or more: raise the hard limit (`ulimit -Hn`, LimitNOFILE= of "
            "systemd, --ulimit nofile= of docker)"
        )


def raise_open_files() -> int:
    """Raises the limit of this process and its later children as far as it can; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed, wanted = _counted(soft), min(_counted(hard), _MOST_FILES)
    if allowed < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS allows less than its hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return allowed


def _counted(limit: int) -> int:
    return _MOST_FILES if limit == resource.RLIM_INFINITY else limit
