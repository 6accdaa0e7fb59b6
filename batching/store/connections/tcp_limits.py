"""After how much silence the kernel gives a connection to Redis up.

A host that is cut off sends no goodbye, and whoever waits for it would wait for minutes. Here a
connection ends once what was sent has not been acknowledged for a second, or after three seconds
without a word, so that everybody connects anew as soon as the line is back. What was not
acknowledged ends with it: a submit that its client was told has failed must not reach the queue
when the line is back. Redis itself need not run for this: its kernel acknowledges.
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

# For redis-py's `socket_keepalive_options`; only what this system has.
TCP_LIMITS = {getattr(socket, name): n for name, n in _LIMITS.items() if hasattr(socket, name)}
