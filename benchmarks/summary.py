"""The sentences of README.md and docs/performance.md that have figures, from benchmarks/results/.

`make charts` writes them and draws the charts, and a test holds the pages against the records.
"""

import sys
from pathlib import Path
from typing import Any

from benchmarks.charts import OTHER, WORKLOADS, draw_all, rates, ratios, record_of
from benchmarks.measuring.records import OURS, ROOT, write_block

README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance.md"
NETWORKS = ("resnet", "resnet-bf16")


def free_ratios() -> list[float]:
    """Returns the ratios to TorchServe where the network costs nothing, the least first."""
    found = ratios()
    return sorted(found[words] for name, words in WORKLOADS.items() if name not in NETWORKS)


def speed() -> str:
    """Returns README's line about speed."""
    least, *_, most = free_ratios()
    network = ratios()[WORKLOADS["resnet"]]
    return (
        f"- **Speed**: {least:.1f} to {most:.1f} times TorchServe's requests per second where the "
        f"network costs nothing, {network:.1f} times with ResNet-152. "
        "[performance.md](docs/performance.md) also says where others are faster."
    )


def batching() -> str:
    """Returns README's line about batches."""
    first, *_, last = record_of("batching")["points"]
    return (
        f"With one worker and 64 clients, they answer {first['requests_per_s']:,.0f} requests per "
        f"second one at a time, and {last['requests_per_s']:,.0f} in batches:"
    )


def performance() -> str:
    """Returns the page about performance, less its chart."""
    lines = (_machine, _beside, _networks, _mosec, _batches, _alone, _workers, _jobs, _idle)
    return "\n".join(f"- {line()}" for line in lines)


def written() -> dict[tuple[str, Path], str]:
    """Returns what belongs between the marks of which page."""
    return {
        ("speed", README): speed(),
        ("batching", README): batching(),
        ("summary", PERFORMANCE): performance(),
    }


def _machine() -> str:
    where = record_of("echo")["machine"]
    return (
        f"All was measured on virtual machines with {where['cpus']} cores, which clients and "
        "servers share: only what stands in one table can be compared. Each figure is a median of "
        "turns."
    )


def _beside() -> str:
    ours, theirs = rates(record_of("echo"))
    least, *_, most = free_ratios()
    return (
        f"Where the network costs nothing, torchferry answers {least:.2f} to {most:.2f} times "
        f"TorchServe's requests/s. Echoes of 1 KiB: {ours:,.0f} to {theirs:,.0f}; the aim was "
        "three times, and is missed."
    )


def _networks() -> str:
    single, half = (ratios()[WORKLOADS[name]] for name in NETWORKS)
    bare = record_of("resnet")["beside"]["bare loop"]["ratio"]
    return (
        f"With ResNet-152 it is {single:.2f} times, with the same answers, as networks are "
        f"prepared for the processor. In bfloat16, for which TorchServe has no setting, it is "
        f"{half:.2f} times. A loop without any server gives as much ({bare:.2f})."
    )


def _mosec() -> str:
    servers = record_of("echo")["servers"]
    mosec, ours = (servers[name]["median"]["requests_per_s"] for name in ("mosec", OURS))
    return (
        f"mosec is faster: {mosec:,.0f} echoes/s, {mosec / ours:.1f} times as many. Its queue is "
        f"in the memory of one process in Rust, and is lost with it, as {OTHER}'s is."
    )


def _batches() -> str:
    first, *_, last = record_of("batching")["points"]
    ratio = last["requests_per_s"] / first["requests_per_s"]
    return (
        f"Batches of up to {last['batch_size']} gave README's five lines {ratio:.1f} times the "
        "requests/s of one at a time."
    )


def _alone() -> str:
    found: dict[str, Any] = record_of("scaling")["alone_p50_ms"]
    return (
        f"A client that is alone waits {found['fixed']:.1f} ms for an answer with a delay of "
        f"10 ms, and {found['adaptive']:.2f} ms with `batch_policy=adaptive`."
    )


def _workers() -> str:
    points = record_of("scaling")["points"]
    ratio = points[-1]["requests_per_s"] / points[0]["requests_per_s"]
    return (
        f"{points[-1]['workers']} workers on {points[-1]['nodes']} nodes answer {ratio:.2f} times "
        "as much as one, for a model that leaves the processor idle."
    )


def _jobs() -> str:
    [line, *_] = record_of("jobs")["verdicts"]
    return f"Jobs hardly slow requests: {line['text'].partition(' (')[0]}."


def _idle() -> str:
    [line, *_] = record_of("idle")["verdicts"]
    return f"A server that nobody asks costs little: {line['text'].partition(' (')[0]}."


def main() -> int:
    draw_all()
    for (name, page), text in written().items():
        write_block(name, text, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
