"""What was measured on a GPU: one record per point, and the tables of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.gpu_points import STEPS, Point
from benchmarks.load import LoadReport
from benchmarks.records import told

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


def to_point(
    point: Point, alone_per_s: float, report: LoadReport, parts_ms: Mapping[str, float]
) -> dict[str, Any]:
    """One point and what was measured of it, as a JSON object."""
    return {
        **asdict(point),
        "forward_per_s": round(alone_per_s, 1),
        "served_per_s": round(report.requests_per_s, 1),
        "share": round(report.requests_per_s / alone_per_s, 3),
        "p50_ms": report.p50_ms,
        "p99_ms": report.p99_ms,
        "errors": report.errors,
        "batch_ms": dict(parts_ms),
    }


def best_points(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The point that serves most, for each network and batch size, in their order."""
    best: dict[tuple[str, int], Mapping[str, Any]] = {}
    for point in points:
        key = (point["network"], point["batch_size"])
        if key not in best or point["served_per_s"] > best[key]["served_per_s"]:
            best[key] = point
    return list(best.values())


def verdict(record: Mapping[str, Any]) -> bool:
    """Whether each network with each batch size is served at the bar in one way, without errors."""
    points = record["points"]
    return not any(point["errors"] for point in points) and all(
        point["share"] >= record["bar"] for point in best_points(points)
    )


def markdown(record: Mapping[str, Any]) -> str:
    """Who measured, and two tables: what was served, and what a batch's time went to."""
    gpu, setting = record["gpu"], record["setting"]
    where = "no GPU" if gpu is None else f"{gpu['name']}, driver {gpu.get('driver', 'unknown')}"
    lines = [
        f"`make bench-gpu` at {told(record)}; {where}; torch {record['versions']['torch']}, "
        f"{setting['dtype']}; load average {record['load_average']} before:",
        "",
        "| | Batch | Workers | JPEGs decoded by | Forward alone, images/s | Served, images/s "
        "| Share | p99, ms | Errors |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(point, record["bar"]) for point in record["points"]),
        "",
        "Milliseconds of one batch, of runs in which the device is waited for after each step:",
        "",
        "| | Batch | Workers | JPEGs decoded by | Images | " + " | ".join(_PARTS.values()) + " |",
        "|---|---|---|---|---|" + "---|" * len(_PARTS),
        *(_split_row(point) for point in record["points"]),
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
        f"{_head(point)} | {point['forward_per_s']:.1f} | {point['served_per_s']:.1f} | {share} "
        f"| {point['p99_ms']:.0f} | {point['errors']} |"
    )


def _split_row(point: Mapping[str, Any]) -> str:
    parts = point["batch_ms"]
    times = " | ".join(f"{parts[name]:.1f}" for name in _PARTS)
    return f"{_head(point)} | {parts['images']:.0f} | {times} |"
