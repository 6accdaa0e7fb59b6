"""The model of a comparison, for servers that take no archives: bodies in, answers out.

An echo, or what TorchServe's image classifier does: each image decoded, scaled and cropped in turn,
the network run as it was saved, the five best classes as JSON.
"""

import io
import json
import os
from collections.abc import Callable

Work = Callable[[list[bytes]], list[bytes]]

BATCH_SIZE = int(os.environ.get("BENCH_BATCH_SIZE", "32"))
DELAY_MS = int(os.environ.get("BENCH_DELAY_MS", "5"))
PORT = int(os.environ.get("BENCH_PORT", "8000"))


def load() -> Work:
    """Loads the model that BENCH_WEIGHTS names; an echo without it."""
    weights = os.environ.get("BENCH_WEIGHTS")
    return _classifier(weights) if weights else _echo


def _echo(bodies: list[bytes]) -> list[bytes]:
    return bodies


def _classifier(weights: str) -> Work:
    # An echo needs none of these, and a server's start would wait for them.
    import torch  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415
    from torchvision import transforms  # noqa: PLC0415

    network = torch.jit.load(weights, map_location="cpu").eval()
    pixels = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )

    def classify(bodies: list[bytes]) -> list[bytes]:
        images = [pixels(Image.open(io.BytesIO(body)).convert("RGB")) for body in bodies]
        with torch.inference_mode():
            scores = torch.softmax(network(torch.stack(images)), dim=1)
        values, classes = torch.topk(scores, 5, dim=1)
        rows = zip(classes.tolist(), values.tolist(), strict=True)
        return [
            json.dumps(dict(zip(map(str, names), found, strict=True))).encode()
            for names, found in rows
        ]

    return classify
