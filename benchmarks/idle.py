"""What an idle server costs: processor time, wake-ups, memory.

    python -m benchmarks.idle

`ferry up` with its own Redis and five models, a worker each; then with a hundred models more that
nobody asks. Exit code 0: every bar is reached; 1: one is missed; 2: it could not be measured.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import psutil

from benchmarks.measuring.processors import Meter, Usage
from benchmarks.measuring.records import Verdict, at_most, finish, parse, table_of
from benchmarks.servers.running import Torchferry

MODELS, MORE_MODELS = 5, 100
# Start-up and registration go on a little in the background: snapshots, the first beats, and the
# process that inspects archives, which waits ten seconds for the next one.
SETTLE_S = 12.0
MB = 1e6

TOTAL_PERCENT = 1.0
INGRESS_BYTES = 80 * MB
MORE_MODELS_BYTES = 1 * MB
# A model that was polled would wake the ingress at least every few seconds, a hundred of them ...
MORE_WAKES_PER_S = 1.0


def measure(seconds: float) -> tuple[dict[str, Any], Iterator[Verdict]]:
    """Measures with the few models and with all. Blocks for twice `seconds`, and for settling."""
    with Torchferry(handler="nap") as server:
        for number in range(MODELS):
            server.register(f"model{number}")
        time.sleep(SETTLE_S)
        usage, resident = watch(server, seconds), ingress_bytes(server)
        # What registering itself needs, code that runs for the first time and garbage that waits
        # for its collection, is no cost of being registered: all are registered once before.
        names = [f"more{number}" for number in range(MORE_MODELS)]
        for name in names:
            server.register(name, initial_workers=0)
        for name in names:
            server.unregister(name)
        time.sleep(SETTLE_S)
        before_bytes = ingress_bytes(server)
        for name in names:
            server.register(name, initial_workers=0)
        time.sleep(SETTLE_S)
        after_bytes = ingress_bytes(server)
        usage_with_more = watch(server, seconds)
    found = {
        "usage": {role: asdict(one) for role, one in usage.items()},
        "usage_with_more": {role: asdict(one) for role, one in usage_with_more.items()},
        "ingress_bytes": resident,
        "before_more_bytes": before_bytes,
        "after_more_bytes": after_bytes,
    }
    about = {"measured": "what an idle server costs", "seconds": seconds, "found": found}
    more_wakes_per_s = usage_with_more["ingress"].wakes_per_s - usage["ingress"].wakes_per_s
    return about, verdicts(usage, resident, after_bytes - before_bytes, more_wakes_per_s)


def ingress_bytes(server: Torchferry) -> int:
    """Returns the memory that the ingress holds, shared pages included."""
    (ingress,) = server.processes()["ingress"]
    return int(psutil.Process(ingress).memory_info().rss)


def watch(server: Torchferry, seconds: float) -> dict[str, Usage]:
    """Measures what each kind of process uses. Blocks for `seconds`."""
    meter = Meter(server.processes())
    time.sleep(seconds)
    return meter.read()


def verdicts(
    usage: Mapping[str, Usage], resident: int, grown_bytes: int, more_wakes_per_s: float
) -> Iterator[Verdict]:
    text = f"idle, {MODELS} models: {{}} of a core, all processes together"
    total_percent = sum(one.percent for one in usage.values())
    yield at_most(total_percent, TOTAL_PERCENT, text, "{:.2f} %")
    yield at_most(resident / MB, INGRESS_BYTES / MB, "ingress: {} resident", "{:.1f} MB")
    text = f"{MORE_MODELS} models more: {{}} of memory in the ingress"
    yield at_most(grown_bytes / MB, MORE_MODELS_BYTES / MB, text, "{:.2f} MB")
    text = f"{MORE_MODELS} models more: the ingress wakes {{}} times a second more often"
    yield at_most(more_wakes_per_s, MORE_WAKES_PER_S, text, "{:.1f}")


def markdown(record: Mapping[str, Any]) -> str:
    usage, more = record["found"]["usage"], record["found"]["usage_with_more"]
    wakes = "wake-ups per s"
    rows = []
    for role in [*(usage | more), "together"]:
        cells = [
            sum(one[name] for key, one in some.items() if role in (key, "together"))
            for some in (usage, more)
            for name in ("percent", "wakes_per_s")
        ]
        forms = ("{:.2f} %", "{:.1f}") * 2
        rows.append((role, *map(str.format, forms, cells)))
    about = f"Percent of a core, over {record['seconds']:.0f} s:\n\n"
    heads = ("", f"{MODELS} models", wakes, f"{MORE_MODELS} models more", wakes)
    return about + table_of(heads, rows)


if __name__ == "__main__":
    options = parse("idle", seconds=(30, 5))
    sys.exit(finish("idle", lambda: measure(options.seconds), markdown, is_short=options.short))
