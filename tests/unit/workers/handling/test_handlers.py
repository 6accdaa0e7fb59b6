"""How a handler is found and what it finds around itself."""

import sys
from pathlib import Path

import pytest
import torch

from batching.settings.settings import Settings
from workers.machine import Device, list_gpus

FUNCTION = "calls = []\ndef handle(data, context):\n    calls.append(data)\n    return data\n"


def test_module_function_is_called_once_without_data(load_handler):
    # When
    model = load_handler({"fn_plain.py": FUNCTION}, handler="fn_plain.py")
    # Then
    assert sys.modules["fn_plain"].calls == [None]
    assert model.entry([1], model.context) == [1]


@pytest.mark.parametrize(
    "handler", ["fn_named:answer", "fn_named.py:answer", "some/path/fn_named.py:answer"]
)
def test_handler_string_names_module_and_function(handler, load_handler):
    # When
    source = "def handle(data, context): return 'wrong'\ndef answer(data, context): return 'right'"
    model = load_handler({"fn_named.py": source}, handler=handler)
    # Then
    assert model.entry([1], model.context) == "right"


def test_handler_outside_of_the_model_is_importable(load_handler, tmp_path):
    # Given a handler for many models, as default_service_handler names it
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "shared_handler.py").write_text("import shared_helper\n" + FUNCTION)
    (folder / "shared_helper.py").touch()
    # When
    model = load_handler({"weights.pt": ""}, handler=f"{folder}/shared_handler.py:handle")
    # Then
    assert model.entry([1], model.context) == [1]


UNUSABLE = {
    "two classes": ("class A: pass\nclass B: pass", ValueError, "exactly one class"),
    "no class": ("from collections import OrderedDict", ValueError, "exactly one class"),
    "coroutine": (
        "async def handle(data, context): return data",
        NotImplementedError,
        "handle is a coroutine",
    ),
    "method that is a coroutine": (
        "class Service:\n"
        "    def initialize(self, context): pass\n"
        "    async def handle(self, data, context): return data",
        NotImplementedError,
        "handle is a coroutine",
    ),
}


@pytest.mark.parametrize(("source", "error", "words"), UNUSABLE.values(), ids=UNUSABLE)
def test_module_without_one_class_or_function_is_refused(source, error, words, load_handler):
    # When / Then
    with pytest.raises(error, match=words):
        load_handler({"fn_unusable.py": source}, handler="fn_unusable")


def test_name_that_is_no_module_of_the_archive_is_a_built_in_one_or_refused(load_handler):
    manifest = {"model": {"modelName": "m"}}  # without weights, of which the built-in one complains
    with pytest.raises(RuntimeError, match="No model weights could be loaded"):
        load_handler({"x": ""}, handler="image_classifier", manifest=manifest)
    with pytest.raises(ImportError, match="'nowhere' is neither a module of the archive"):
        load_handler({"x": ""}, handler="nowhere.py:handle", manifest=manifest)


def test_current_directory_and_import_path_are_the_models_folder(load_handler):
    # Given
    source = (
        "import cwd_helper, pathlib\n"
        "def handle(data, context): return pathlib.Path('words.txt').read_text()"
    )
    files = {"cwd_handler.py": source, "cwd_helper.py": "", "words.txt": "hello"}
    # When
    model = load_handler(files, handler="cwd_handler")
    # Then
    assert model.entry(None, model.context) == "hello"
    assert Path.cwd().name == "model"


def test_context_tells_the_handler_about_its_model(load_handler):
    # Given
    manifest = {"model": {"modelName": "archived", "configFile": "model-config.yaml"}}
    files = {"ctx.py": FUNCTION, "model-config.yaml": "handler: {top_k: 3}"}
    # When
    context = load_handler(
        files,
        handler="ctx",
        manifest=manifest,
        model_name="served",
        batch_size=8,
        device=Device("cuda", 1),
    ).context
    # Then
    assert context.model_name == "served"
    assert context.manifest == manifest
    assert context.model_yaml_config == {"handler": {"top_k": 3}}
    assert context.system_properties == {
        "model_dir": str(Path.cwd()),
        "gpu_id": 1,
        "batch_size": 8,
        "server_name": "MMS",
        "server_version": "0.12.0",
        "limit_max_image_pixels": True,
    }


@pytest.mark.parametrize(("limit", "expected"), [(1000, 1000), (0, None)])
def test_pixel_limit_is_set_before_the_handler_loads(limit, expected, load_handler):
    # Given
    source = "from PIL import Image\nseen = Image.MAX_IMAGE_PIXELS\n" + FUNCTION
    # When
    settings = Settings(max_image_pixels=limit)
    context = load_handler({"px.py": source}, handler="px", settings=settings).context
    # Then
    assert sys.modules["px"].seen == expected
    assert context.system_properties["limit_max_image_pixels"] is (limit > 0)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of this capability for one test; tells which one was chosen."""
    before = torch.get_float32_matmul_precision()

    def run(capability):
        chosen = []
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.set_device", chosen.append)
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
        torch.set_float32_matmul_precision("highest")
        return chosen

    yield run
    torch.set_float32_matmul_precision(before)


EXTENDING = """
from ts.torch_handler.base_handler import BaseHandler
class Own(BaseHandler):
    def initialize(self, context): pass
"""


BY_CLASS = "import torch\n" + EXTENDING
AT_IMPORT = f"{BY_CLASS}\ntorch.set_float32_matmul_precision('medium')"
AT_START = BY_CLASS.replace("pass", "torch.set_float32_matmul_precision('highest')")
PRODUCTS = {
    "newer": (EXTENDING, Device("cuda", 2), (9, 0), "high"),
    "ampere": (EXTENDING, Device("cuda", 0), (8, 0), "high"),
    "turing": (EXTENDING, Device("cuda", 0), (7, 5), "highest"),
    "cpu": (EXTENDING, Device("cpu"), (9, 0), "highest"),
    "chosen at import": (AT_IMPORT, Device("cuda", 0), (9, 0), "medium"),
    "chosen in initialize": (AT_START, Device("cuda", 0), (9, 0), "highest"),
    "no base handler": (FUNCTION, Device("cuda", 0), (9, 0), "highest"),
}


@pytest.mark.parametrize(
    ("source", "device", "capability", "expected"), PRODUCTS.values(), ids=PRODUCTS
)
def test_handler_has_its_workers_gpu_and_tf32_products_if_that_has_them(  # noqa: PLR0917
    source, device, capability, expected, load_handler, gpu, monkeypatch
):
    # Given
    chosen = gpu(capability)
    if source == FUNCTION:
        monkeypatch.delitem(sys.modules, "ts.torch_handler.base_handler", raising=False)
    # When
    load_handler({"fn_tf32.py": source}, handler="fn_tf32", device=device)
    # Then
    assert torch.get_float32_matmul_precision() == expected
    assert chosen == ([] if device.index is None else [device.index])


def fake_smi(folder, gpus):
    lines = "\n".join(f"echo 'GPU {gpu}: NVIDIA H200 (UUID: GPU-{gpu})'" for gpu in range(gpus))
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\n{lines}\necho '  MIG 1g.10gb Device 0: (UUID: MIG-1)'\n")
    script.chmod(0o755)


@pytest.mark.parametrize(
    ("visible", "limit", "expected"),
    [
        (None, -1, [0, 1, 2]),
        (None, 2, [0, 1]),
        (None, 0, []),
        ("2,0", -1, [0, 1]),
        ("", -1, []),
        ("-1", -1, []),
        ("GPU-a,GPU-b", 1, [0]),
        ("0,1,2,3", -1, [0, 1, 2]),
        ("2,3,0", -1, [0]),
        ("5", -1, []),
        ("MIG-a,MIG-b", -1, [0]),
    ],
)
def test_gpus_are_those_that_cuda_would_count(visible, limit, expected, tmp_path, monkeypatch):
    # Given
    fake_smi(tmp_path, gpus=3)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    # When / Then
    assert list_gpus(limit) == expected
