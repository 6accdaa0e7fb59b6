"""The figures and charts of README.md and docs/performance.md, from benchmarks/results/.

`make charts` writes them, and a test holds the pages against the records.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.measuring.records import OURS, ROOT, record_of, write_block

if TYPE_CHECKING:
    from matplotlib.axes import Axes

README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance.md"
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
NETWORKS = {"resnet": "ResNet-152, float32", "resnet-bf16": "ResNet-152, bfloat16 here"}
# Text stays text, and the same record always gives the same file.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": OURS, "font.family": "sans-serif"})


def rates(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns each server's requests/s in a record of `benchmarks.compare`."""
    if beside := record.get("beside"):  # as the older records are written
        medians = beside[OTHER]["medians"]
    else:
        medians = {name: server["median"] for name, server in record["servers"].items()}
    return {name: median["requests_per_s"] for name, median in medians.items()}


def ratios() -> dict[str, float]:
    """Returns torchferry's requests/s over TorchServe's, by the words of the chart."""
    workloads = {words: rates(record_of(name)) for name, words in (FREE | NETWORKS).items()}
    return {words: each[OURS] / each[OTHER] for words, each in workloads.items()}


def batching() -> dict[str, float]:
    """Returns requests/s by the largest batch."""
    points = record_of("batching")["points"]
    return {f"batches of up to {one['batch_size']}": one["requests_per_s"] for one in points}


def written() -> dict[tuple[str, Path], str]:
    """Returns what belongs between the marks of which page."""
    against = ratios()
    least, *_, most = sorted(against[words] for words in FREE.values())
    single, *_, batched = batching().values()
    speed = (
        f"- **Speed**: {least:.1f} to {most:.1f} times TorchServe's requests per second where the "
        f"network costs nothing, {against[NETWORKS['resnet']]:.1f} times with ResNet-152. "
        "[performance.md](docs/performance.md) also says where others are faster."
    )
    batches = (
        f"With one worker and 64 clients, they answer {single:,.0f} requests per "
        f"second one at a time, and {batched:,.0f} in batches:"
    )
    lines = [f"- {line}" for line in performance(against, least, most, batched / single)]
    return {
        ("speed", README): speed,
        ("batching", README): batches,
        ("summary", PERFORMANCE): "\n".join(lines),
    }


def performance(
    against: Mapping[str, float], least: float, most: float, batching_ratio: float
) -> list[str]:
    """Returns the sentences of the page about performance."""
    echo, scaling = record_of("echo"), record_of("scaling")
    servers, alone_ms = rates(echo), scaling["alone_p50_ms"]
    full, half = (against[words] for words in NETWORKS.values())
    bare = record_of("resnet")["beside"]["bare loop"]["ratio"]
    largest = record_of("batching")["points"][-1]["batch_size"]
    first, last = scaling["points"][0], scaling["points"][-1]
    jobs, idle = (
        record_of(name)["verdicts"][0]["text"].partition(" (")[0] for name in ("jobs", "idle")
    )
    return [
        f"All was measured on virtual machines with {echo['machine']['cpus']} cores, which clients "
        "and servers share: only what stands in one table can be compared. Each figure is a median "
        "of turns.",
        f"Where the network costs nothing, torchferry answers {least:.2f} to {most:.2f} times "
        f"TorchServe's requests/s. Echoes of 1 KiB: {servers[OURS]:,.0f} to {servers[OTHER]:,.0f}; "
        "the aim was three times, and is missed.",
        f"With ResNet-152 it is {full:.2f} times, with the same answers, as networks are "
        f"prepared for the processor. In bfloat16, for which TorchServe has no setting, it is "
        f"{half:.2f} times. A loop without any server gives as much ({bare:.2f}).",
        f"mosec is faster: {servers['mosec']:,.0f} echoes/s, "
        f"{servers['mosec'] / servers[OURS]:.1f} times as many. Its queue is in the memory of one "
        f"process in Rust, and is lost with it, as {OTHER}'s is.",
        f"Batches of up to {largest} gave README's five lines {batching_ratio:.1f} times the "
        "requests/s of one at a time.",
        f"A client that is alone waits {alone_ms['fixed']:.1f} ms for an answer with a delay of "
        f"10 ms, and {alone_ms['adaptive']:.2f} ms with `batch_policy=adaptive`.",
        f"{last['workers']} workers on {last['nodes']} nodes answer "
        f"{last['requests_per_s'] / first['requests_per_s']:.2f} times as much as one, for a model "
        "that leaves the processor idle.",
        f"Jobs hardly slow requests: {jobs}.",
        f"A server that nobody asks costs little: {idle}.",
    ]


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


def main() -> int:
    title = f"requests/s beside {OTHER} (= 1)"
    draw("performance", title, {OTHER: 1.0, **ratios()}, "{:.2f} x", 1)
    rising = batching()
    single = next(iter(rising.values()))
    draw("batching", "requests/s of one worker, 64 clients", rising, "{:,.0f}", single)
    for (name, page), text in written().items():
        write_block(name, text, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
