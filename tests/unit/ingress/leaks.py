"""B14: what an error must never tell."""

import re
import socket
import sys

_SECRETS = [
    r"Traceback",
    r"\.py\b",
    r'File "',
    r"\bline \d+",
    r"object at 0x",
    r"/(?:tmp|home|root|work|usr|proc|etc|var)/",
    r"(?:redis|unix|rediss)://",
    r"\{model2:",
    r"\{m:",
    r"\{ferry\}",
    r"rq:",
    r"(?i:httptools|llhttp|werkzeug|flask|hiredis|uvloop|redis-py)",
    re.escape(sys.version.split()[0]),
    re.escape(socket.gethostname()),
]
SECRET = re.compile("|".join(f"(?:{pattern})" for pattern in _SECRETS))


def assert_tells_nothing(text, asked=""):
    """Checks that the text has no path, traceback, key, host or version but those in `asked`."""
    found = SECRET.search(text)
    while found is not None:
        assert found[0] in asked, f"an error tells {found[0]!r}: {text!r}"
        found = SECRET.search(text, found.end())
