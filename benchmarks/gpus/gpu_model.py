"""torchvision's networks with random weights, archived, and a photo for them.

    python -m benchmarks.gpus.gpu_model FOLDER NETWORK DTYPE DECODE...

A process of its own, so that the driver of the load has no torch in its memory.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torchvision

from benchmarks.gpus.gpu_points import PHOTO, PLAIN, RAW, TIMED, archive_path
from benchmarks.resnet import normalise, photo, save_script
from benchmarks.servers.archives import write_archive

STRICT = Path(__file__).with_name("gpu_strict_handler.py")
STOPWATCH = Path(__file__).with_name("gpu_handler.py")
EXAMPLES = 8
SEED = 152


def write_all(folder: Path, network: str, dtype: str, decoders: Sequence[str]) -> None:
    """Writes a photo and the network's archives: as it came, and two for each decoder."""
    (folder / PHOTO).write_bytes(photo(0))
    weights = folder / f"{network}.pt"
    save_script(make_network(network), weights)
    write_one(archive_path(folder, RAW), weights, "prepare: false\n")
    for decode in decoders:
        # A handler of one's own is prepared only when it asks for it.
        config = f"prepare: true\ndtype: {dtype}\njpeg_decoder: {decode}\n"
        plain = () if decode == "cpu" else (STRICT,)
        write_one(archive_path(folder, PLAIN, decode), weights, config, *plain)
        write_one(archive_path(folder, TIMED, decode), weights, config, STOPWATCH, STRICT)


def write_one(archive: Path, weights: Path, config: str, *handlers: Path) -> None:
    """Writes an archive with the weights and the first handler, or the built-in one."""
    config_file = archive.with_name("model-config.yaml")
    config_file.write_text(config)
    model = {
        "modelName": weights.stem,
        "modelVersion": "1.0",
        "serializedFile": weights.name,
        "configFile": config_file.name,
        "handler": handlers[0].name if handlers else "image_classifier",
    }
    write_archive(archive, model, weights, config_file, *handlers)


def make_network(name: str) -> torch.nn.Module:
    """Makes a seeded network with statistics of its own, so that half precision cannot overflow."""
    torch.manual_seed(SEED)
    network: torch.nn.Module = torchvision.models.get_model(name, weights=None)
    normalise(network, torch.randn(EXAMPLES, 3, 224, 224))
    return network


if __name__ == "__main__":
    folder, network, dtype, *decoders = sys.argv[1:]
    write_all(Path(folder), network, dtype, decoders)
