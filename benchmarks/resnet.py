"""ResNet-152 with random weights, archived, and photos for it.

    python -m benchmarks.resnet FOLDER

A process of its own, so that the driver of the load has no torch in its memory.
"""

import io
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image, ImageDraw, ImageFilter
from torchvision import transforms

from benchmarks.servers.archives import write_archive

NAME = "resnet-152"
WEIGHTS, FLOAT32, BFLOAT16 = f"{NAME}.pt", f"{NAME}.mar", f"{NAME}-bfloat16.mar"
PHOTOS = 8
SIDE = 720
SEED = 152
MARGIN = 9.0


def write_all(folder: Path) -> None:
    """Writes the photos, the scripted network and its two archives into the folder."""
    photos = [photo(number) for number in range(PHOTOS)]
    for number, content in enumerate(photos):
        (folder / f"photo-{number}.jpg").write_bytes(content)
    network = make_decided_network([pixels(content) for content in photos])
    weights = folder / WEIGHTS
    save_script(network, weights)
    model = {"modelName": NAME, "modelVersion": "1.0", "handler": "image_classifier"}
    model["serializedFile"] = weights.name
    write_archive(folder / FLOAT32, model, weights)
    config = folder / "model-config.yaml"
    config.write_text("dtype: bfloat16\n")
    write_archive(folder / BFLOAT16, model | {"configFile": config.name}, weights, config)


def save_script(network: torch.nn.Module, path: Path) -> None:
    """Writes the network to `path` as TorchScript."""
    with warnings.catch_warnings():
        # Existing archives hold TorchScript, whatever new models should be compiled with.
        warnings.filterwarnings("ignore", r".*torch\.jit.*")
        torch.jit.script(network).save(str(path))


def photo(number: int) -> bytes:
    """Makes a JPEG of SIDE x SIDE pixels with edges, areas and noise; the same every time."""
    dice = np.random.default_rng(number)
    noise = dice.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    image = Image.fromarray(noise).filter(ImageFilter.GaussianBlur(1 + number))
    pencil = ImageDraw.Draw(image)
    for _ in range(30):
        left, top, width, height = (int(value) for value in dice.integers(20, SIDE // 2, 4))
        color = tuple(int(value) for value in dice.integers(0, 256, 3))
        draw = dice.choice([pencil.ellipse, pencil.rectangle])
        draw((left, top, left + width, top + height), fill=color)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=90)
    return stream.getvalue()


def pixels(content: bytes) -> torch.Tensor:
    """Returns float32 [1, 3, 224, 224] as ImageNet's networks want it."""
    prepare = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    with Image.open(io.BytesIO(content)) as image:
        tensor: torch.Tensor = prepare(image.convert("RGB"))
    return tensor.unsqueeze(0)


def make_decided_network(examples: Sequence[torch.Tensor]) -> torch.nn.Module:
    """Makes a network as sure of its classes as a trained one, even in half precision.

    Example i is of class i by a wide margin, and the other classes are random.
    """
    network: Any = make_network(examples, branch_weight=0.1)
    seen: list[torch.Tensor] = []
    hook = network.avgpool.register_forward_hook(lambda *step: seen.append(step[2].flatten(1)))
    with torch.inference_mode():
        network(torch.cat(list(examples)))
        hook.remove()
        features = seen[0]
        mean = features.mean(dim=0)
        own = features - mean
        rows = MARGIN * own / own.square().sum(dim=1, keepdim=True)
        network.fc.weight[: len(rows)] = rows
        network.fc.bias[: len(rows)] = -(rows @ mean)
    return network  # type: ignore[no-any-return]


def make_network(examples: Sequence[torch.Tensor], branch_weight: float = 1.0) -> torch.nn.Module:
    """Makes a ResNet-152 with random weights whose answers differ from photo to photo.

    Without statistics of real activations 152 random layers answer the same to everything.

    Args:
        examples: float32 [1, 3, 224, 224] each.
        branch_weight: what each block adds to what it is given; at 1.0 random blocks magnify every
            rounding, training leaves less.
    """
    torch.manual_seed(SEED)
    network: torch.nn.Module = torchvision.models.resnet152(weights=None)
    for module in network.modules():
        if isinstance(module, torchvision.models.resnet.Bottleneck):
            torch.nn.init.constant_(module.bn3.weight, branch_weight)
    normalise(network, torch.cat(list(examples)))
    with torch.inference_mode():
        # Enough to tell the photos apart; more would also tell one thread's sums from two threads'.
        network.fc.weight.mul_(6.0)
    return network


def normalise(network: torch.nn.Module, batch: torch.Tensor) -> None:
    """Its normalisations have the statistics of this batch; it is in evaluation mode."""
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.inference_mode():
        network.train()(batch)
    network.eval()


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
