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


class Touch:
    """Unpickled, it makes the file at this path."""

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
    """Newer torches say that TorchScript is deprecated, in one way or another; 2.6 does not."""
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
    """TorchScript: traced with an example if there is one, else scripted."""
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
