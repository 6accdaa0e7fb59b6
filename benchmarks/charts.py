"""Draws the charts of README.md and docs/performance.md from benchmarks/results/."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.measuring.records import OURS, RESULTS, ROOT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IMAGES = ROOT / "docs" / "images"
TEAL, GREY, INK = "#0f9488", "#b8c1cc", "#56606c"
OTHER = "TorchServe"
# In these a request's price is that of the server; in the last two, that of the network.
WORKLOADS = {
    "echo": "1 KiB echo",
    "label-110k": "110 kB in, a label out",
    "label-1m": "1 MB in, a label out",
    "echo-110k": "110 kB in and out",
    "resnet": "ResNet-152, float32",
    "resnet-bf16": "ResNet-152, bfloat16 here",
}
# Text stays text, and the same record always gives the same file.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": OURS, "font.family": "sans-serif"})


def record_of(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return record


def rates(record: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the requests/s of torchferry and TorchServe in a record of `benchmarks.compare`."""
    if beside := record.get("beside"):
        medians = beside[OTHER]["medians"]
    else:
        medians = {name: server["median"] for name, server in record["servers"].items()}
    return medians[OURS]["requests_per_s"], medians[OTHER]["requests_per_s"]


def ratios() -> dict[str, float]:
    """Returns torchferry's requests/s over TorchServe's, by the words of the chart."""
    pairs = {words: rates(record_of(name)) for name, words in WORKLOADS.items()}
    return {words: ours / theirs for words, (ours, theirs) in pairs.items()}


def batching() -> dict[str, float]:
    """Returns requests/s by the largest batch."""
    points = record_of("batching")["points"]
    return {f"batches of up to {one['batch_size']}": one["requests_per_s"] for one in points}


def draw(name: str, title: str, bars: Mapping[str, float], form: str, base: float) -> None:
    """Writes one chart of bars from top to bottom; those up to `base` are grey."""
    figure = Figure(figsize=(7.2, 0.55 + 0.38 * len(bars)), layout="constrained")
    axes: Axes = figure.subplots()
    colors = [GREY if value <= base else TEAL for value in bars.values()]
    drawn = axes.barh(list(bars), list(bars.values()), color=colors, height=0.65)
    axes.bar_label(drawn, [form.format(value) for value in bars.values()], padding=4, color=INK)
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.set_visible(False)
    axes.tick_params(left=False, labelcolor=INK)
    axes.spines[:].set_visible(False)
    # Pages are dark for some readers.
    figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None}, facecolor="white")


def draw_all() -> None:
    against = ratios()
    draw("performance", f"requests/s beside {OTHER} (= 1)", {OTHER: 1.0, **against}, "{:.2f} x", 1)
    rising = batching()
    first = next(iter(rising.values()))
    draw("batching", "requests/s of one worker, 64 clients", rising, "{:,.0f}", first)
