"""What an idle server costs: processor time, wake-ups, memory.

    python -m benchmarks.idle

`ferry up` with its own Redis and five models, a worker each; then with a hundred models more that
nobody asks. Exit code 0: every bar is reached; 1: one is missed; 2: it could not be measured.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.measuring.processors import Meter, Usage, resident_bytes, total_percent
from benchmarks.measuring.records import told
from benchmarks.measuring.reports import Verdict, at_most, finish, positive, to_record
from benchmarks.servers.fleet import Fleet

MODELS, MORE_MODELS = 5, 100
SECONDS, SHORT_SECONDS = 30.0, 5.0
# Start-up and registration go on a little in the background: snapshots, the first beats.
SETTLE_S = 6.0
MB = 1e6

TOTAL_PERCENT = 1.0
INGRESS_BYTES = 80 * MB
MORE_MODELS_BYTES = 1 * MB
# A model that was polled would wake the ingress at least every few seconds, a hundred of them ...
MORE_WAKES_PER_S = 1.0


@dataclass(frozen=True, slots=True)
class Found:
    """Of an idle server: what each kind of process used, and memory of the ingress."""

    usage: Mapping[str, Usage]
    usage_with_more: Mapping[str, Usage]
    ingress_bytes: int
    # Before and after the further models; registering has been done once before.
    before_more_bytes: int
    after_more_bytes: int


def measure(fleet: Fleet, seconds: float) -> Found:
    """Adds the models to the fleet and measures it. Blocks for twice `seconds`."""
    register_models(fleet)
    usage, resident = watch(fleet, seconds), ingress_bytes(fleet)
    before_more_bytes, after_more_bytes = register_more(fleet)
    usage_with_more = watch(fleet, seconds)
    return Found(usage, usage_with_more, resident, before_more_bytes, after_more_bytes)


def register_models(fleet: Fleet, settle_s: float = SETTLE_S) -> None:
    """Registers the models, with a worker each, and waits until the server is idle."""
    for number in range(MODELS):
        fleet.register(f"model{number}")
    time.sleep(settle_s)


def register_more(fleet: Fleet, settle_s: float = SETTLE_S / 2) -> tuple[int, int]:
    """Registers further models without workers; returns the ingress's bytes before and after.

    What registering itself needs, code that runs for the first time and garbage that waits for its
    collection, is no cost of being registered: all are registered and removed once before.
    """
    names = [f"more{number}" for number in range(MORE_MODELS)]
    for name in names:
        fleet.register(name, initial_workers=0)
    for name in names:
        fleet.unregister(name)
    time.sleep(settle_s)
    before_bytes = ingress_bytes(fleet)
    for name in names:
        fleet.register(name, initial_workers=0)
    time.sleep(settle_s)
    return before_bytes, ingress_bytes(fleet)


def ingress_bytes(fleet: Fleet) -> int:
    """Returns the memory that the ingress holds, shared pages included."""
    (ingress,) = fleet.processes()["ingress"]
    return resident_bytes(ingress)


def watch(fleet: Fleet, seconds: float) -> dict[str, Usage]:
    """Measures what each kind of process uses. Blocks for `seconds`."""
    meter = Meter(fleet.processes())
    time.sleep(seconds)
    return meter.read()


def verdicts(found: Found) -> Iterator[Verdict]:
    """Returns each figure that has a bar."""
    total = total_percent(found.usage)
    text = f"idle, {MODELS} models: {{}} of a core, all processes together"
    yield at_most(total, TOTAL_PERCENT, text, "{:.2f} %")
    yield at_most(found.ingress_bytes / MB, INGRESS_BYTES / MB, "ingress: {} resident", "{:.1f} MB")
    grown = (found.after_more_bytes - found.before_more_bytes) / MB
    text = f"{MORE_MODELS} models more: {{}} of memory in the ingress"
    yield at_most(grown, MORE_MODELS_BYTES / MB, text, "{:.2f} MB")
    before, after = found.usage["ingress"], found.usage_with_more["ingress"]
    text = f"{MORE_MODELS} models more: the ingress wakes {{}} times a second more often"
    yield at_most(after.wakes_per_s - before.wakes_per_s, MORE_WAKES_PER_S, text, "{:.1f}")


def markdown(record: Mapping[str, Any]) -> str:
    """Returns the origin, a table and the verdicts."""
    found, more = record["found"]["usage"], record["found"]["usage_with_more"]
    lines = [
        f"`python -m benchmarks.idle` at {told(record)}; load average before: "
        f"{record['load_average']}. Percent of a core, over {record['seconds']:.0f} s:",
        "",
        f"| | {MODELS} models | wake-ups per s | {MORE_MODELS} models more | wake-ups per s |",
        "|---|---|---|---|---|",
    ]
    for role, usage in found.items():
        lines.append(f"| {role} | {_cells(usage)} | {_cells(more[role])} |")
    totals = [_total(usage) for usage in (found, more)]
    lines.append(f"| together | {_cells(totals[0])} | {_cells(totals[1])} |")
    return "\n".join(lines)


def _cells(usage: Mapping[str, float]) -> str:
    return f"{usage['percent']:.2f} % | {usage['wakes_per_s']:.1f}"


def _total(usage: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(one[name] for one in usage.values()) for name in ("percent", "wakes_per_s")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures everything, prints and writes it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle")
    parser.add_argument("--seconds", type=positive, default=None, help="of each look")
    parser.add_argument("--short", action="store_true", help="leave the document as it is")
    options = parser.parse_args(arguments)
    seconds = options.seconds or (SHORT_SECONDS if options.short else SECONDS)
    load_average = round(os.getloadavg()[0], 2)

    def record() -> dict[str, Any]:
        with Fleet() as fleet:
            found = measure(fleet, seconds)
        about = {"seconds": seconds, "load_average": load_average, "found": asdict(found)}
        return to_record("what an idle server costs", about, list(verdicts(found)))

    return finish("idle", record, markdown, is_short=options.short)


if __name__ == "__main__":
    sys.exit(main())
