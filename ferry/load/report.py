"""A sweep's result: a table, and files with the same figures as JSON and as a chart."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ferry.load.figures import Figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = (
    *("size", "delay ms", "req/s", "x single", "p50 ms", "p95 ms", "p99 ms"),
    *("batch", "requests", "errors"),
)


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of a sweep and what came of it."""

    batch_size: int
    delay_ms: int
    figures: Figures


def write_report(
    folder: Path, title: str, facts: dict[str, str], points: Sequence[Point]
) -> list[Path]:
    """Writes report.json and chart.png, and returns their paths.

    Args:
        folder: where; it must exist.
        title: of the chart.
        facts: what was measured, and how.
        points: in the order of the table.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: a file cannot be written.
    """
    record, picture = folder / "report.json", folder / "chart.png"
    record.write_text(as_record(facts, points) + "\n")
    chart = draw(points)
    # A dollar in a model's name begins no formula.
    chart.suptitle(title, parse_math=False, wrap=True)
    chart.savefig(picture, dpi=150)
    return [record, picture]


def as_record(facts: dict[str, str], points: Sequence[Point]) -> str:
    """Returns the sweep as JSON."""
    records = [
        {"batch_size": point.batch_size, "max_batch_delay": point.delay_ms, **asdict(point.figures)}
        for point in points
    ]
    return json.dumps({"facts": facts, "points": records}, indent=2)


def draw(points: Sequence[Point]) -> "Figure":
    """Draws throughput and latency against batch size, one line per delay; single requests at 1.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    chart = Figure(figsize=(11, 4.5), layout="constrained")
    throughput, latency = chart.subplots(1, 2)
    single = [point for point in points if point.batch_size == 1]
    batched = [point for point in points if point.batch_size > 1]
    for number, delay_ms in enumerate(sorted({point.delay_ms for point in batched}) or [0]):
        line = single + [point for point in batched if point.delay_ms == delay_ms]
        sizes, color, label = [p.batch_size for p in line], f"C{number}", f"delay {delay_ms} ms"
        rates = [p.figures.requests_per_s for p in line]
        throughput.plot(sizes, rates, "o-", color=color, label=label)
        p50, p99 = [p.figures.p50_ms for p in line], [p.figures.p99_ms for p in line]
        latency.plot(sizes, p50, "o-", color=color, label=f"p50, {label}")
        latency.plot(sizes, p99, "x--", color=color, label=f"p99, {label}")
    all_sizes = sorted({point.batch_size for point in points})
    for axes, text in ((throughput, "requests/s"), (latency, "latency, ms")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(all_sizes, [str(size) for size in all_sizes])
        axes.set(xlabel="batch size", ylabel=text)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    return chart


def table(points: Sequence[Point]) -> list[list[str]]:
    """Returns one row per point, under `HEADS`; "x single" compares it with single requests."""
    single = next((p.figures.requests_per_s for p in points if p.batch_size == 1), 0.0)
    return [_row(point, single) for point in points]


def _row(point: Point, single_per_s: float) -> list[str]:
    found = point.figures
    return [
        str(point.batch_size),
        str(point.delay_ms),
        f"{found.requests_per_s:.1f}",
        f"{found.requests_per_s / single_per_s:.2f}" if single_per_s else "-",
        *(f"{value:.1f}" for value in (found.p50_ms, found.p95_ms, found.p99_ms)),
        "-" if found.mean_batch is None else f"{found.mean_batch:.1f}",
        str(found.requests),
        str(found.errors),
    ]
