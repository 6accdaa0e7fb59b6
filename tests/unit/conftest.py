import os
import signal
import sys
from pathlib import Path

import pytest

from batching.models.spec import ModelSpec
from batching.settings.settings import Settings
from workers.handling.handlers import load_model
from workers.machine import Device

CPU = Device("cpu")


@pytest.fixture
def hears_hangup():
    """Whatever is started hears SIGHUP, though these tests may have been started by `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def store(tmp_path):
    """A model store, empty unless a file of tests says otherwise."""
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def load_handler(tmp_path):
    """Loads a model from the given files in this process, which is itself again afterwards."""
    folder, path, modules = Path.cwd(), list(sys.path), set(sys.modules)
    image = sys.modules.get("PIL.Image")
    max_pixels = image.MAX_IMAGE_PIXELS if image else None

    def load(files, *, settings=None, device=CPU, **spec):
        model_dir = tmp_path / "model"
        for name, content in files.items():
            place = model_dir / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content if isinstance(content, bytes) else content.encode())
        defaults = {"model_name": "echo", "model_version": "1.0", "model_url": "echo.mar"}
        return load_model(
            ModelSpec(**{**defaults, **spec}), model_dir, device, settings or Settings()
        )

    yield load
    os.chdir(folder)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        # Handlers go; libraries that they were the first to import stay.
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    if image := sys.modules.get("PIL.Image"):
        image.MAX_IMAGE_PIXELS = max_pixels or 89_478_485
