"""What was measured on a GPU: one record per point, and the tables of them.

    python -m benchmarks.gpu_report RECORD

writes the tables of a record, made on another machine perhaps, into benchmarks/results/README.md.
"""

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpus.gpu_points import STEPS, Point, Served
from benchmarks.measuring.records import told, write_block

# Of the forward's images per second.
BAR = 0.9
_PARTS = {
    "between": "reply, gather",
    "decode": "decode",
    "to_device": "to the device",
    "forward": "forward",
    "from_device": "best classes, back",
    "rest": "rows, JSON",
}
assert set(STEPS) < set(_PARTS)


def to_point(point: Point, alone_per_s: float, raw_per_s: float, served: Served) -> dict[str, Any]:
    """Returns a point and its measurement as a JSON object; `batch_ms` may follow.

    Args:
        point: what was measured.
        alone_per_s: images/s of the prepared model's forward.
        raw_per_s: the same of the model as it came, in float32.
        served: what clients saw.
    """
    report = served.report
    return {
        **asdict(point),
        "raw_per_s": round(raw_per_s, 1),
        "forward_per_s": round(alone_per_s, 1),
        "served_per_s": round(report.requests_per_s, 1),
        "share": round(report.requests_per_s / alone_per_s, 3),
        "p50_ms": report.p50_ms,
        "p99_ms": report.p99_ms,
        "errors": report.errors,
        "cores": dict(served.cores),
        "batch_ms": None,
    }


def best_points(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the point that serves most, for each network and batch size, in their order."""
    best: dict[tuple[str, int], Mapping[str, Any]] = {}
    for point in points:
        key = (point["network"], point["batch_size"])
        if key not in best or point["served_per_s"] > best[key]["served_per_s"]:
            best[key] = point
    return list(best.values())


def verdict(record: Mapping[str, Any]) -> bool:
    """Returns whether each network and batch size reaches the bar in one way, without errors."""
    points = record["points"]
    return not any(point["errors"] for point in points) and all(
        point["share"] >= record["bar"] for point in best_points(points)
    )


def markdown(record: Mapping[str, Any]) -> str:
    """Returns the origin and three tables: throughput, cost, and the parts of a batch."""
    gpu, setting, points = record["gpu"], record["setting"], record["points"]
    roles = sorted({role for point in points for role in point["cores"]})
    where = "no GPU" if gpu is None else f"{gpu['name']}, driver {gpu.get('driver', 'unknown')}"
    lines = [
        f"`make bench-gpu` at {told(record)}; {where}; torch {record['versions']['torch']}, "
        f"{setting['dtype']}; load average {record['load_average']} before:",
        "",
        "| | Batch | Workers | JPEGs decoded by | Forward as it came, images/s "
        "| Forward alone, images/s | Served, images/s | Share | p99, ms | Errors |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_row(point, record["bar"]) for point in points),
        "",
        f"Cores that were busy meanwhile; ingresses: {setting['ingresses']}.",
        "",
        "| | Batch | Workers | JPEGs decoded by | " + " | ".join(roles) + " |",
        "|---|---|---|---|" + "---|" * len(roles),
        *(_cores_row(point, roles) for point in points),
        "",
        "Milliseconds of one batch where most are served, of runs in which the device is waited "
        "for after each step:",
        "",
        "| | Batch | Workers | JPEGs decoded by | Images | " + " | ".join(_PARTS.values()) + " |",
        "|---|---|---|---|---|" + "---|" * len(_PARTS),
        *(_split_row(point) for point in points if point["batch_ms"]),
    ]
    return "\n".join(lines)


def _head(point: Mapping[str, Any]) -> str:
    names = ("network", "batch_size", "workers", "decode")
    return "| " + " | ".join(str(point[name]) for name in names)


def _row(point: Mapping[str, Any], bar: float) -> str:
    share = f"{point['share']:.0%}"
    if point["share"] >= bar:
        share = f"**{share}**"
    return (
        f"{_head(point)} | {point['raw_per_s']:.1f} | {point['forward_per_s']:.1f} "
        f"| {point['served_per_s']:.1f} | {share} | {point['p99_ms']:.0f} | {point['errors']} |"
    )


def _cores_row(point: Mapping[str, Any], roles: Sequence[str]) -> str:
    busy = " | ".join(f"{point['cores'].get(role, 0.0):.1f}" for role in roles)
    return f"{_head(point)} | {busy} |"


def _split_row(point: Mapping[str, Any]) -> str:
    parts = point["batch_ms"]
    times = " | ".join(f"{parts[name]:.1f}" for name in _PARTS)
    return f"{_head(point)} | {parts['images']:.0f} | {times} |"


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
