"""A sweep's result as files: JSON, a chart, and a page that needs nothing else."""

import html
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferry.load.figures import Figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES = (11, 4.5)
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem; text-align: right }
thead { border-bottom: 1px solid } tbody tr:nth-child(odd) { background: #8881 }
svg { max-width: 100%; height: auto } dt { float: left; clear: left; width: 9rem; color: #777 }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd }
svg { background: #fff } }
"""
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
    """report.json, chart.png and report.html are in the folder, which is made if need be.

    Args:
        folder: where.
        title: of page and chart.
        facts: what was measured, and how; shown beside the figures.
        points: in the order of the table.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in ("report.json", "chart.png", "report.html")]
    paths[0].write_text(as_record(facts, points) + "\n")
    chart = draw(points)
    drawing = io.StringIO()
    chart.savefig(drawing, format="svg")
    # The page has the title itself. In names, dollars are no formulas.
    chart.suptitle(title, parse_math=False, wrap=True)
    chart.savefig(paths[1], dpi=150)
    paths[2].write_text(page(title, facts, points, drawing.getvalue()), encoding="utf-8")
    return paths


def as_record(facts: dict[str, str], points: Sequence[Point]) -> str:
    """Returns the sweep as JSON."""
    records = [{**_record(point), **asdict(point.figures)} for point in points]
    return json.dumps({"facts": facts, "points": records}, indent=2)


def draw(points: Sequence[Point]) -> "Figure":
    """Throughput and latency against batch size, one line per delay; single requests at 1.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    chart = Figure(figsize=_INCHES, layout="constrained")
    throughput, latency = chart.subplots(1, 2)
    single = [point for point in points if point.batch_size == 1]
    all_sizes = sorted({point.batch_size for point in points})
    for number, delay_ms in enumerate(_delays(points)):
        line = single + [p for p in points if p.delay_ms == delay_ms and p.batch_size > 1]
        sizes, color = [p.batch_size for p in line], f"C{number}"
        label = f"delay {delay_ms} ms"
        rates = [p.figures.requests_per_s for p in line]
        throughput.plot(sizes, rates, "o-", color=color, label=label)
        for style, share in (("o-", "p50_ms"), ("x--", "p99_ms")):
            values = [getattr(p.figures, share) for p in line]
            name = f"{share[:3]}, {label}"
            latency.plot(sizes, values, style, color=color, label=name)
    for axes, text in ((throughput, "requests/s"), (latency, "latency, ms")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(all_sizes, [str(size) for size in all_sizes])
        axes.set_xlabel("batch size")
        axes.set_ylabel(text)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    return chart


def page(title: str, facts: dict[str, str], points: Sequence[Point], drawing: str) -> str:
    """Returns the whole page; `drawing` is an SVG document."""
    said = "".join(f"<dt>{html.escape(k)}<dd>{html.escape(v)}" for k, v in facts.items())
    heads = "".join(f"<th>{head}" for head in HEADS)
    rows = "".join("<tr>" + "".join(f"<td>{cell}" for cell in row) for row in table(points))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>{drawing[drawing.index('<svg') :]}"
        f"<table><thead><tr>{heads}<tbody>{rows}</table><dl>{said}</dl></html>\n"
    )


def table(points: Sequence[Point]) -> list[list[str]]:
    """One row of texts per point, under `HEADS`; a batch size of 1 is what others are held to."""
    single = next((p.figures.requests_per_s for p in points if p.batch_size == 1), 0.0)
    return [_row(point, single) for point in points]


def _row(point: Point, single_per_s: float) -> list[str]:
    found = point.figures
    gain = f"{found.requests_per_s / single_per_s:.2f}" if single_per_s else "-"
    batch = "-" if found.mean_batch is None else f"{found.mean_batch:.1f}"
    times = (f"{value:.1f}" for value in (found.p50_ms, found.p95_ms, found.p99_ms))
    setting = [str(point.batch_size), str(point.delay_ms)]
    return [
        *setting,
        f"{found.requests_per_s:.1f}",
        gain,
        *times,
        batch,
        str(found.requests),
        str(found.errors),
    ]


def _record(point: Point) -> dict[str, Any]:
    return {"batch_size": point.batch_size, "max_batch_delay": point.delay_ms}


def _delays(points: Sequence[Point]) -> list[int]:
    found = sorted({point.delay_ms for point in points if point.batch_size > 1})
    return found or [0]
