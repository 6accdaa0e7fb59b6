"""Small models and images for tests of the default handlers."""

import contextlib
import io
import json
import warnings

import torch
from PIL import Image

NAMES = json.dumps({str(number): ["n0", f"label{number}"] for number in range(8)})
MODEL_SOURCE = """
import torch
class Pooled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weigh = torch.nn.Linear(3, {classes})
    def forward(self, images):
        return self.weigh(images.mean(dim=(2, 3)))
"""


class Pooled(torch.nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.weigh = torch.nn.Linear(3, classes)

    def forward(self, images):
        return self.weigh(images.mean(dim=(2, 3)))


class Convolved(torch.nn.Module):
    """Has something to fold: a convolution and the normalisation behind it."""

    def __init__(self):
        super().__init__()
        self.see = torch.nn.Conv2d(3, 16, 3, stride=2)
        self.normalise = torch.nn.BatchNorm2d(16)
        self.weigh = torch.nn.Linear(16, 8)

    def forward(self, images):
        seen = torch.relu(self.normalise(self.see(images)))
        return self.weigh(seen.mean(dim=(2, 3)))


def trained(kind):
    """Returns a model whose normalisation does something, always the same."""
    torch.manual_seed(3)
    model = kind()
    for _ in range(3):
        model(torch.randn(8, 3, 32, 32) * 2 + 1)
    return model.eval()


class Touch:
    """Makes the file at this path when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@contextlib.contextmanager
def torchscript():
    """Hides that newer torches call TorchScript deprecated, in one way or another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


def scripted(model):
    buffer = io.BytesIO()
    with torchscript():
        torch.jit.save(torch.jit.script(model), buffer)
    return buffer.getvalue()


def frozen(model, example=None):
    """Returns frozen TorchScript: traced with an example if there is one, else scripted."""
    model = model.eval()
    with torchscript():
        model = torch.jit.script(model) if example is None else torch.jit.trace(model, example)
        return torch.jit.freeze(model.to(memory_format=torch.channels_last))


def manifest(**model):
    return {"model": {"modelName": "m", "modelVersion": "1.0", **model}}


def picture(mode="RGB", size=(300, 200), image_format="PNG", **options):
    gradient = Image.linear_gradient("L").resize(size)
    channels = [gradient, gradient.rotate(90), gradient.rotate(180)]
    image = Image.merge("RGB", channels).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()
