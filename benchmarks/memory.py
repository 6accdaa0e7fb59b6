"""Memory of a model's workers, for each way in which its weights may come.

    python -m benchmarks.memory

ResNet-152 with two workers, through `ferry up`, `prepare: false` unless said otherwise. Memory is
PSS, as the kernel has it in /proc/PID/smaps_rollup: a page that n processes share counts as 1/n for
each.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
import torchvision

from benchmarks.measuring.records import told
from benchmarks.measuring.reports import finish, to_record
from benchmarks.resnet import save_script
from benchmarks.servers.archives import write_archive
from benchmarks.servers.measured_ferry import MeasuredFerry
from benchmarks.servers.server import Job

NETWORK = "resnet152"
MB = 1e6
WAYS = {
    "archive": "state dict, in an archive: shared",
    "folder": "state dict, in a folder of the model store: copied",
    "torchscript": "TorchScript, in an archive: copied",
    "prepared": "the same, prepared (the default)",
}
SOURCE = """
from torchvision.models.resnet import Bottleneck, ResNet

class Network(ResNet):
    def __init__(self):
        super().__init__(Bottleneck, {layers})
"""
LAYERS = {"resnet152": [3, 8, 36, 3], "resnet50": [3, 4, 6, 3]}


def pss_bytes(pid: int) -> int:
    """Returns the process's share of the memory that it uses."""
    return int(psutil.Process(pid).memory_full_info().pss)


def write_model(folder: Path, network: str, way: str) -> Path:
    """Writes the model in this form; the weights are the same each time."""
    torch.manual_seed(152)
    module = torchvision.models.get_model(network, weights=None).eval()
    config, source = folder / "model-config.yaml", folder / "network.py"
    config.write_text(f"prepare: {way == 'prepared'}\n")
    model = {
        "modelName": network,
        "modelVersion": "1.0",
        "handler": "image_classifier",
        "configFile": config.name,
    }
    archive = folder / "model.mar"
    if way in ("torchscript", "prepared"):
        weights = folder / "weights.pt"
        save_script(module, weights)
        write_archive(archive, model | {"serializedFile": weights.name}, config, weights)
        return archive
    weights = folder / "weights.pth"
    torch.save(module.state_dict(), weights)
    source.write_text(SOURCE.format(layers=LAYERS[network]))
    model |= {"serializedFile": weights.name, "modelFile": source.name}
    write_archive(archive, model, config, source, weights)
    if way == "folder":
        shutil.unpack_archive(archive, folder / "model", "zip")
        return folder / "model"
    return archive


def workers_bytes(network: str, way: str, workers: int) -> list[int]:
    """Returns PSS of each worker once all have loaded the model.

    Raises:
        BenchmarkError: the server did not start or refused the model.
    """
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        archive = write_model(Path(name), network, way)
        job = Job(network, archive, batch_size=1, max_batch_delay_ms=0, workers=workers)
        with MeasuredFerry(job) as server:
            return [pss_bytes(pid) for pid in server.worker_pids()]


def markdown(record: Mapping[str, Any]) -> str:
    """Returns the origin and a table."""
    lines = [
        f"`python -m benchmarks.memory` at {told(record)}, torch {torch.__version__}; "
        f"{record['network']}, weights of {record['weights_bytes'] / MB:.0f} MB:",
        "",
        f"| | PSS of each of {record['workers']} workers, MB | together |",
        "|---|---|---|",
    ]
    for way, sizes in record["pss_bytes"].items():
        each = ", ".join(f"{size / MB:.0f}" for size in sizes)
        lines.append(f"| {WAYS[way]} | {each} | {sum(sizes) / MB:.0f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures everything, prints and writes it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--network", choices=list(LAYERS), default=NETWORK)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--short", action="store_true", help="leave the document as it is")
    options = parser.parse_args(arguments)

    def record() -> dict[str, Any]:
        network = torchvision.models.get_model(options.network, weights=None)
        about = {
            "network": options.network,
            "workers": options.workers,
            "weights_bytes": sum(one.nbytes for one in network.state_dict().values()),
            "pss_bytes": {
                way: workers_bytes(options.network, way, options.workers) for way in options.ways
            },
        }
        return to_record("memory of workers (PSS) after loading", about, [])

    return finish("memory", record, markdown, is_short=options.short)


if __name__ == "__main__":
    sys.exit(main())
