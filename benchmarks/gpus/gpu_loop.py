"""A model's forward alone, again and again, prepared as the server prepares it.

    python -m benchmarks.gpus.gpu_loop ARCHIVE DEVICE BATCH_SIZE SECONDS

prints images per second: what a server could reach that costs nothing. `compat/` has to be on the
path.
"""

import sys
import tempfile
import time
from pathlib import Path

import torch
from ts.context import Context
from ts.torch_handler.image_classifier import ImageClassifier

from workers.archives.model_archive import inspect_archive, unpack_archive

# Launched before a GPU is waited for, so that it never waits for us.
FORWARDS = {"cpu": 1, "cuda": 8}


def loaded(archive: Path, kind: str, batch_size: int) -> ImageClassifier:
    """Loads the archive's model onto the device, with the built-in handler."""
    info = inspect_archive(archive, archive.name)
    gpu = 0 if kind == "cuda" else None
    handler = ImageClassifier()
    with tempfile.TemporaryDirectory(prefix="loop-") as folder:
        place = unpack_archive(archive, info.sha256, Path(folder))
        handler.initialize(
            Context(
                *(info.model_name, str(place), dict(info.manifest or {}), batch_size, gpu, "0"),
                model_yaml_config=dict(info.config),
            )
        )
    return handler


def loop(handler: ImageClassifier, batch_size: int, seconds: float) -> float:
    """Images per second, after two rounds that are not measured."""
    batch = torch.rand(batch_size, 3, 224, 224).to(handler.device)
    kind = handler.device.type

    def run() -> None:
        for _ in range(FORWARDS[kind]):
            handler.inference(batch)
        if kind == "cuda":
            torch.cuda.synchronize(handler.device)

    run()
    run()
    rounds, started_s = 0, time.perf_counter()
    while time.perf_counter() - started_s < seconds:
        run()
        rounds += 1
    return rounds * FORWARDS[kind] * batch_size / (time.perf_counter() - started_s)


if __name__ == "__main__":
    archive, kind, batch_size, seconds = sys.argv[1:]
    print(loop(loaded(Path(archive), kind, int(batch_size)), int(batch_size), float(seconds)))
