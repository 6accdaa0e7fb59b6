"""How many files, connections among them, a process may have open at once."""

import contextlib
import resource

# Some programs close every descriptor that they might have; where the hard limit is a billion, as
# in some containers, that takes them minutes. Workers run what others wrote.
_MOST_FILES = 1_048_576


def raise_open_files() -> int:
    """How many files this process may have open: as many as it can allow itself.

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
