"""Networks with random weights, archived, and photos for them.

    python -m benchmarks.networks resnet FOLDER
    python -m benchmarks.networks classifier FOLDER NETWORK DECODER...

A process of its own, so that the driver of the load has no torch in its memory. `resnet` is for
`benchmarks.compare`, `classifier` for `benchmarks.gpu`.
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

from benchmarks.servers.child import write_archive

RESNET = "resnet-152"
SIDE = 720
SEED = 152
GPU_HANDLER = Path(__file__).with_name("gpu_handler.py")


def write_resnet(folder: Path) -> None:
    """Writes photos and a ResNet-152."""
    photos = [photo(number) for number in range(8)]
    for number, content in enumerate(photos):
        (folder / f"photo-{number}.jpg").write_bytes(content)
    weights = folder / f"{RESNET}.pt"
    save_script(make_decided_network([pixels(content) for content in photos]), weights)
    write_script(folder / f"{RESNET}.mar", weights)


def write_classifier(folder: Path, name: str, decoders: Sequence[str]) -> None:
    """Writes a photo and archives of torchvision's network: as it came, and for each decoder.

    Its normalisations have statistics of their own, so that half precision cannot overflow.
    """
    (folder / "photo.jpg").write_bytes(photo(0))
    torch.manual_seed(SEED)
    network: torch.nn.Module = torchvision.models.get_model(name, weights=None)
    normalise(network, torch.randn(8, 3, 224, 224))
    weights = folder / f"{name}.pt"
    save_script(network, weights)
    write_script(folder / "raw.mar", weights, "prepare: false\n")
    for decoder in decoders:
        # A handler of one's own is prepared only when it asks for it.
        config = f"prepare: true\njpeg_decoder: {decoder}\n"
        handlers = (GPU_HANDLER,) if decoder == "gpu" else ()
        write_script(folder / f"plain-{decoder}.mar", weights, config, *handlers)


def write_script(archive: Path, weights: Path, config: str = "", *handlers: Path) -> None:
    """Writes an archive with the weights and the handler, or the built-in one."""
    handler = handlers[0].name if handlers else "image_classifier"
    model = {"modelName": weights.stem, "serializedFile": weights.name, "handler": handler}
    files = [weights, *handlers]
    if config:
        files.append(archive.with_name("model-config.yaml"))
        files[-1].write_text(config)
        model["configFile"] = files[-1].name
    write_archive(archive, model, *files)


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
    """Makes a ResNet-152 as sure of its classes as a trained one, even in half precision.

    Example i, float32 [1, 3, 224, 224], is of class i by a wide margin; the other classes are
    random. Without statistics of real activations, 152 random layers answer the same to everything,
    and blocks that add all of what they compute magnify every rounding.
    """
    torch.manual_seed(SEED)
    network: Any = torchvision.models.resnet152(weights=None)
    for module in network.modules():
        if isinstance(module, torchvision.models.resnet.Bottleneck):
            torch.nn.init.constant_(module.bn3.weight, 0.1)
    batch = torch.cat(list(examples))
    normalise(network, batch)
    seen: list[torch.Tensor] = []
    hook = network.avgpool.register_forward_hook(lambda *step: seen.append(step[2].flatten(1)))
    with torch.inference_mode():
        # Enough to tell the photos apart; more would also tell one thread's sums from two threads'.
        network.fc.weight.mul_(6.0)
        network(batch)
        hook.remove()
        features = seen[0]
        mean = features.mean(dim=0)
        own = features - mean
        # Class i leads by nine.
        rows = 9.0 * own / own.square().sum(dim=1, keepdim=True)
        network.fc.weight[: len(rows)] = rows
        network.fc.bias[: len(rows)] = -(rows @ mean)
    return network  # type: ignore[no-any-return]


def normalise(network: torch.nn.Module, batch: torch.Tensor) -> None:
    """Its normalisations have the statistics of this batch; it is in evaluation mode."""
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.inference_mode():
        network.train()(batch)
    network.eval()


if __name__ == "__main__":
    what, folder, *words = sys.argv[1:]
    if what == "resnet":
        write_resnet(Path(folder))
    else:
        write_classifier(Path(folder), words[0], words[1:])
