"""The time of silence after which the kernel gives up a connection to Redis.

A host that is cut off sends no goodbye, and its callers would wait for minutes. Here a connection
ends once data has not been acknowledged for a second, or after three seconds without a word, so
that callers connect anew as soon as the line is back. Data that was not acknowledged is dropped: a
submit whose client was told that it failed must not reach the queue later. Redis itself need not
run for this: its kernel acknowledges.
"""

import socket

UNHEARD_S = 1.0
IDLE_S = 2
PROBE_S = 1
PROBES = 2

_LIMITS = {
    "TCP_KEEPIDLE": IDLE_S,
    "TCP_KEEPINTVL": PROBE_S,
    "TCP_KEEPCNT": PROBES,
    "TCP_USER_TIMEOUT": int(UNHEARD_S * 1000),
}

# For redis-py's `socket_keepalive_options`; only those that this system has.
TCP_LIMITS = {getattr(socket, name): n for name, n in _LIMITS.items() if hasattr(socket, name)}
