"""How many files, connections among them, a process may have open at once."""

import contextlib
import resource

from ferry.console import warn

# A node holds two descriptors per worker and an ingress two per connection of a client.
_ENOUGH_FILES = 1_024
# Some programs close every descriptor that they might have; where the hard limit is a billion, as
# in some containers, that takes them minutes. Workers run what others wrote.
_MOST_FILES = 1_048_576


def allow_many_files() -> None:
    """This process and its children may open what a server needs, or a warning says otherwise."""
    if (allowed := raise_open_files()) < _ENOUGH_FILES:
        warn(
            f"only {allowed} files may be open at once, connections included, and a server needs "
            f"{_ENOUGH_FILES} or more: raise the hard limit (`ulimit -Hn`, LimitNOFILE= of "
            "systemd, --ulimit nofile= of docker)"
        )


def raise_open_files() -> int:
    """Returns how many files this process may have open: as many as it can allow itself.

    So may the children that it starts from now on.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed, wanted = _counted(soft), min(_counted(hard), _MOST_FILES)
    if allowed < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS allows less than its hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return allowed


def _counted(limit: int) -> int:
    return _MOST_FILES if limit == resource.RLIM_INFINITY else limit
