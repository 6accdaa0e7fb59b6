"""The table of what was measured on a GPU, from its record.

    python -m benchmarks.gpu_report RECORD

writes the table of a record, made on another machine perhaps, into benchmarks/results/README.md.
"""

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring.records import told, write_block


def verdict(record: Mapping[str, Any]) -> bool:
    """Returns whether each network and batch size reaches the bar in one way, without errors."""
    best: dict[tuple[str, int], float] = {}
    for point in record["points"]:
        key = (point["network"], point["batch_size"])
        best[key] = max(point["share"], best.get(key, 0.0))
    has_errors = any(point["errors"] for point in record["points"])
    return not has_errors and min(best.values()) >= record["bar"]


def markdown(record: Mapping[str, Any]) -> str:
    gpu, setting, points = record["gpu"], record["setting"], record["points"]
    roles = sorted({role for point in points for role in point["cores"]})
    where = "no GPU" if gpu is None else f"{gpu['name']}, driver {gpu.get('driver', 'unknown')}"
    lines = [
        f"`make bench-gpu` at {told(record)}; {where}; torch {record['versions']['torch']}, "
        f"{setting['dtype']}; load average {record['load_average']} before. Images/s, and the "
        "cores that were busy meanwhile:",
        "",
        "| | Batch | Workers | JPEGs decoded by | Forward as it came | Forward alone | Served "
        f"| Share | p99, ms | Errors | {' | '.join(roles)} |",
        "|---|---|---|---|---|---|---|---|---|---|" + "---|" * len(roles),
    ]
    for point in points:
        share = f"{point['share']:.0%}"
        cells = [
            *(point[name] for name in ("network", "batch_size", "workers", "decode")),
            *(f"{point[name]:.1f}" for name in ("raw_per_s", "forward_per_s", "served_per_s")),
            f"**{share}**" if point["share"] >= record["bar"] else share,
            f"{point['p99_ms']:.0f}",
            point["errors"],
            *(f"{point['cores'].get(role, 0.0):.1f}" for role in roles),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def read_record(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the record of the file that is named; ends the program if there are no results.

    Raises:
        SystemExit: says in one sentence what to do.
    """
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        [path] = arguments
        record: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        if record["points"]:
            return record
    where = f" in {' '.join(arguments)}" if arguments else ""
    sys.exit(
        f"There are no results{where}: name the one record that `make bench-gpu` has written, "
        "such as benchmarks/results/gpu.json."
    )


if __name__ == "__main__":
    write_block("gpu", markdown(read_record(sys.argv[1:])))
