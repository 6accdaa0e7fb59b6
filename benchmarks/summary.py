"""README's figures and the charts, from benchmarks/results/.

`make charts` writes them, and a test holds them against the records.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.measuring.records import OURS, RESULTS, ROOT, write_block

if TYPE_CHECKING:
    from matplotlib.axes import Axes

README = ROOT / "README.md"
IMAGES = ROOT / "docs" / "images"
TEAL, GREY, INK = "#0f9488", "#b8c1cc", "#56606c"
OTHER = "TorchServe"
# In these a request's price is that of the server; in the networks, that of the network.
FREE = {
    "echo": "1 KiB echo",
    "label-110k": "110 kB in, a label out",
    "label-1m": "1 MB in, a label out",
    "echo-110k": "110 kB in and out",
}
RESNET = "ResNet-152, float32"
# Text stays text, and the same record always gives the same file.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": OURS, "font.family": "sans-serif"})


def record_of(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return record


def ratios() -> dict[str, float]:
    """Returns torchferry's requests/s over TorchServe's, by the words of the chart."""
    found = {}
    for name, words in (FREE | {"resnet": RESNET}).items():
        servers = record_of(name)["servers"]
        ours, theirs = (servers[one]["median"]["requests_per_s"] for one in (OURS, OTHER))
        found[words] = ours / theirs
    return found


def batching() -> dict[str, float]:
    """Returns requests/s by the largest batch."""
    points = record_of("batching")["points"]
    return {f"batches of up to {one['batch_size']}": one["requests_per_s"] for one in points}


def written() -> dict[str, str]:
    """Returns what belongs between which marks of README."""
    against = ratios()
    least, *_, most = sorted(against[words] for words in FREE.values())
    single, *_, batched = batching().values()
    speed = (
        f"- **Speed**: {least:.1f} to {most:.1f} times TorchServe's requests per second with "
        f"models that take no time, {against[RESNET]:.1f} times with ResNet-152. "
        "[performance.md](docs/performance.md) also says where others are faster."
    )
    batches = (
        f"With one worker and 64 clients, they answer {single:,.0f} requests per "
        f"second one at a time, and {batched:,.0f} in batches:"
    )
    return {"speed": speed, "batching": batches}


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


if __name__ == "__main__":
    title = f"requests/s beside {OTHER} (= 1)"
    draw("performance", title, {OTHER: 1.0, **ratios()}, "{:.2f} x", 1)
    rising = batching()
    single = next(iter(rising.values()))
    draw("batching", "requests/s of one worker, 64 clients", rising, "{:,.0f}", single)
    for name, text in written().items():
        write_block(name, text, README)
