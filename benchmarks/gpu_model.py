"""torchvision's networks with random weights, archived, and a photo for them.

    python -m benchmarks.gpu_model FOLDER NETWORK DTYPE DECODE

A process of its own, so that whoever drives the load has no torch in its memory.
"""

import sys
import warnings
from pathlib import Path

import torch
import torchvision

from benchmarks.archives import write_archive
from benchmarks.gpu_points import PHOTO, PLAIN, TIMED
from benchmarks.resnet import photo

HANDLER = Path(__file__).with_name("gpu_handler.py")
EXAMPLES = 8
SEED = 152


def write_all(folder: Path, network: str, dtype: str, decode: str) -> None:
    """The folder has a photo and the network twice: with the built-in handler, and timed."""
    (folder / PHOTO).write_bytes(photo(0))
    weights = folder / f"{network}.pt"
    with warnings.catch_warnings():
        # Existing archives hold TorchScript, whatever new models should be compiled with.
        warnings.filterwarnings("ignore", r".*torch\.jit.*")
        torch.jit.script(make_network(network)).save(str(weights))
    config = folder / "model-config.yaml"
    # A handler of one's own is prepared only when it asks for it.
    config.write_text(f"prepare: true\ndtype: {dtype}\njpeg_decoder: {decode}\n")
    model = {
        "modelName": network,
        "modelVersion": "1.0",
        "serializedFile": weights.name,
        "configFile": config.name,
    }
    write_archive(folder / PLAIN, model | {"handler": "image_classifier"}, weights, config)
    write_archive(folder / TIMED, model | {"handler": HANDLER.name}, weights, config, HANDLER)


def make_network(name: str) -> torch.nn.Module:
    """Seeded; normalised by statistics of its own, so that half precision does not overflow."""
    torch.manual_seed(SEED)
    network: torch.nn.Module = torchvision.models.get_model(name, weights=None)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.inference_mode():
        network.train()(torch.randn(EXAMPLES, 3, 224, 224))
    return network.eval()


if __name__ == "__main__":
    folder, network, dtype, decode = sys.argv[1:]
    write_all(Path(folder), network, dtype, decode)
