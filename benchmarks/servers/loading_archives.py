"""The image classifiers of TorchServe's examples with random weights, archived as it does.

    python -m benchmarks.servers.loading_archives FOLDER

A process of its own, so that the driver of the load has no torch in its memory.
"""

import runpy
import sys
from pathlib import Path

import torch
import torchvision

from benchmarks.resnet import photo, save_script
from benchmarks.servers.archives import write_archive

# What the archives' model files define, each of which holds one class.
_NETWORK = "from {module} import {names}\n\n\nclass Network({base}):\n"
_DIGITS = """import torch
from torch import nn
from torch.nn import functional


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, images):
        seen = functional.relu(self.conv1(images))
        seen = functional.max_pool2d(self.conv2(seen), 2)
        features = functional.relu(self.fc1(torch.flatten(seen, 1)))
        return functional.log_softmax(self.fc2(features), dim=1)
"""
_DIGITS_HANDLER = """from torchvision import transforms

from ts.torch_handler.image_classifier import ImageClassifier


class Digits(ImageClassifier):
    image_processing = transforms.Compose([
        transforms.Grayscale(),
        transforms.Resize((28, 28)),
        transforms.ToTensor(),
        transforms.Normalize((0.1307,), (0.3081,)),
    ])

    def postprocess(self, data):
        return data.argmax(1).tolist()
"""


def _subclass(module: str, base: str, arguments: str, *others: str) -> str:
    head = _NETWORK.format(module=module, names=", ".join([*others, base]), base=base)
    return f"{head}    def __init__(self):\n        super().__init__({arguments})\n"


SOURCES = {
    "densenet161": _subclass("torchvision.models", "DenseNet", "48, (6, 12, 36, 24), 96"),
    "resnet-152": _subclass(
        "torchvision.models.resnet", "ResNet", "Bottleneck, [3, 8, 36, 3]", "Bottleneck"
    ),
    "resnet-18": _subclass(
        "torchvision.models.resnet", "ResNet", "BasicBlock, [2, 2, 2, 2]", "BasicBlock"
    ),
    "alexnet": _subclass("torchvision.models", "AlexNet", ""),
    "mnist": _DIGITS,
}
SCRIPTED = "resnet-152-scripted"


def write_all(folder: Path) -> None:
    """Writes the archives into the folder and then, as a sign that all are there, a photo."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        _write(folder / f"{name}.mar", name, source)
    script = folder / f"{SCRIPTED}.pt"
    save_script(torchvision.models.resnet152(weights=None).eval(), script)
    model = {"modelName": SCRIPTED, "modelVersion": "1.0", "handler": "image_classifier"}
    archive = folder / f"{SCRIPTED}.mar"
    write_archive(archive, model | {"serializedFile": script.name}, script, is_deflated=True)
    (folder / "photo.jpg").write_bytes(photo(0))


def _write(archive: Path, name: str, source: str) -> None:
    folder = archive.with_suffix("")
    folder.mkdir(exist_ok=True)
    file, weights, handler = (folder / one for one in ("model.py", "weights.pth", "digits.py"))
    file.write_text(source)
    torch.manual_seed(1)
    torch.save(runpy.run_path(str(file))["Network"]().state_dict(), weights)
    model = {"modelName": name, "modelVersion": "1.0", "handler": "image_classifier"}
    files = [file, weights]
    if source == _DIGITS:
        handler.write_text(_DIGITS_HANDLER)
        model["handler"] = handler.name
        files.append(handler)
    model |= {"modelFile": file.name, "serializedFile": weights.name}
    write_archive(archive, model, *files, is_deflated=True)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
