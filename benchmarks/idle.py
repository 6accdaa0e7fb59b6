"""What an idle server costs: processor time, wake-ups, memory.

    python -m benchmarks.idle

`ferry up` with its own Redis and five models, a worker each; then with a hundred models more that
nobody asks.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import psutil

from benchmarks.measuring.processors import Meter
from benchmarks.measuring.records import Verdict, at_most, main, table_of
from benchmarks.servers.running import Torchferry

MODELS, MORE_MODELS = 5, 100
# Start-up and registration go on a little in the background: snapshots, the first beats, and the
# process that inspects archives, which waits ten seconds for the next one.
SETTLE_S = 12.0

TOTAL_PERCENT, INGRESS_MB, MORE_MODELS_MB = 1.0, 80.0, 1.0
# A model that was polled would wake the ingress at least every few seconds, a hundred of them ...
MORE_WAKES_PER_S = 1.0


def measure(is_short: bool) -> dict[str, Any]:
    """Measures with the few models and with all."""
    seconds = 5 if is_short else 30
    with Torchferry(handler="nap") as server:
        register_models(server)
        usage, resident = watch(server, seconds), ingress_bytes(server)
        before_bytes, after_bytes = register_more(server)
        usage_with_more = watch(server, seconds)
    found = {
        "usage": usage,
        "usage_with_more": usage_with_more,
        "ingress_bytes": resident,
        "before_more_bytes": before_bytes,
        "after_more_bytes": after_bytes,
    }
    about = {"measured": "what an idle server costs", "seconds": seconds, "found": found}
    return {**about, "verdicts": list(verdicts(found))}


def register_models(server: Torchferry, settle_s: float = SETTLE_S) -> None:
    """Registers the models, with a worker each, and waits until the server is idle."""
    for number in range(MODELS):
        server.register(f"model{number}")
    time.sleep(settle_s)


def register_more(server: Torchferry, settle_s: float = SETTLE_S) -> tuple[int, int]:
    """Registers further models without workers; returns the ingress's bytes before and after.

    What registering itself needs, code that runs for the first time and garbage that waits for its
    collection, is no cost of being registered: all are registered and removed once before.
    """
    names = [f"more{number}" for number in range(MORE_MODELS)]
    for name in names:
        server.register(name, initial_workers=0)
    for name in names:
        server.unregister(name)
    time.sleep(settle_s)
    before_bytes = ingress_bytes(server)
    for name in names:
        server.register(name, initial_workers=0)
    time.sleep(settle_s)
    return before_bytes, ingress_bytes(server)


def ingress_bytes(server: Torchferry) -> int:
    """Returns the memory that the ingress holds, shared pages included."""
    (ingress,) = server.processes()["ingress"]
    return int(psutil.Process(ingress).memory_info().rss)


def watch(server: Torchferry, seconds: float) -> dict[str, dict[str, float]]:
    """Measures what each kind of process uses. Blocks for `seconds`."""
    meter = Meter(server.processes())
    time.sleep(seconds)
    return {role: asdict(usage) for role, usage in meter.read().items()}


def verdicts(found: Mapping[str, Any]) -> Iterator[Verdict]:
    usage, more = found["usage"], found["usage_with_more"]
    text = f"idle, {MODELS} models: {{}} of a core, all processes together"
    total_percent = sum(one["percent"] for one in usage.values())
    yield at_most(total_percent, TOTAL_PERCENT, text, "{:.2f} %")
    yield at_most(found["ingress_bytes"] / 1e6, INGRESS_MB, "ingress: {} resident", "{:.1f} MB")
    grown_mb = (found["after_more_bytes"] - found["before_more_bytes"]) / 1e6
    text = f"{MORE_MODELS} models more: {{}} of memory in the ingress"
    yield at_most(grown_mb, MORE_MODELS_MB, text, "{:.2f} MB")
    text = f"{MORE_MODELS} models more: the ingress wakes {{}} times a second more often"
    more_wakes_per_s = more["ingress"]["wakes_per_s"] - usage["ingress"]["wakes_per_s"]
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
        rows.append((role, *map(str.format, ("{:.2f} %", "{:.1f}") * 2, cells)))
    about = f"Percent of a core, over {record['seconds']:.0f} s:\n\n"
    heads = ("", f"{MODELS} models", wakes, f"{MORE_MODELS} models more", wakes)
    return about + table_of(heads, rows)


if __name__ == "__main__":
    sys.exit(main("idle", measure, markdown))
