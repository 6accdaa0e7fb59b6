"""Weights without Python source (ONNX, torch.export, AOTInductor), compiling and profiling."""

import io
import json
import logging
import os
import platform
import shutil
import sys
import types
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from ts.context import RequestProcessor
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.weights import load_onnx, load_pt2, load_torchscript, run_onnx

from tests.unit.compat.onnx_bytes import doubling_model
from tests.unit.models import MODEL_SOURCE, Pooled, Touch, manifest, saved, scripted

CPU = torch.device("cpu")


def answer(loaded, rows):
    loaded.context.request_processor = [RequestProcessor({}) for _ in rows]
    return loaded.entry(rows, loaded.context)


@pytest.fixture
def load_compiled(load_handler):
    """Loads the weights of a model whose model-config.yaml has this `pt2`."""

    def run(pt2, model):
        files = {
            "compiled_net.py": MODEL_SOURCE.format(classes=2),
            "w.pt": saved(model.state_dict()),
            "c.yaml": json.dumps({"pt2": pt2}),
        }
        section = manifest(modelFile="compiled_net.py", serializedFile="w.pt", configFile="c.yaml")
        return load_handler(files, handler="base_handler", manifest=section)

    yield run
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def answer_of_compiled(loaded, images):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of torch's compiler about itself
        return torch.tensor(answer(loaded, images.tolist()))


def exported(model, example):
    batch = torch.export.Dim("batch", min=1, max=64)
    return torch.export.export(model.eval(), (example,), dynamic_shapes=({0: batch},))


def test_onnx_model_is_run_by_the_base_handler(load_handler):
    # Given
    pytest.importorskip("onnxruntime")
    section = manifest(serializedFile="model.onnx")

    # When
    loaded = load_handler(
        {"model.onnx": doubling_model()}, handler="base_handler", manifest=section
    )

    # Then
    assert answer(loaded, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) == [[2, 4, 6], [8, 10, 12]]


def test_onnx_model_computes_on_the_workers_share_of_the_cores(tmp_path):
    # Given
    pytest.importorskip("onnxruntime")
    (tmp_path / "model.onnx").write_bytes(doubling_model())
    before = torch.get_num_threads()
    torch.set_num_threads(3)

    # When
    try:
        session = load_onnx(str(tmp_path / "model.onnx"), CPU)
    finally:
        torch.set_num_threads(before)

    # Then
    assert session.get_session_options().intra_op_num_threads == 3


@pytest.mark.parametrize(("device", "number"), [("cuda:3", 3), ("cuda", 0)])
def test_onnx_model_is_on_the_workers_gpu(device, number, monkeypatch):
    # Given
    runtime = types.SimpleNamespace(
        SessionOptions=types.SimpleNamespace,
        InferenceSession=lambda path, options, providers: providers,
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)

    # When
    providers = load_onnx("model.onnx", torch.device(device))

    # Then
    assert providers == [("CUDAExecutionProvider", {"device_id": number}), "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("load", "message"),
    [(load_onnx, "onnxruntime is needed"), (load_pt2, r"model\.bin is not a \.pt2 file")],
)
def test_weights_that_cannot_be_loaded_say_why(load, message, tmp_path, monkeypatch):
    # Given
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "model.bin").write_bytes(b"none")

    # When / Then
    with pytest.raises(RuntimeError, match=message):
        load(str(tmp_path / "model.bin"), CPU)


class Session:
    """The part of an onnxruntime session that a model with two inputs and outputs needs."""

    def get_outputs(self):
        return [types.SimpleNamespace(name=name) for name in ("sum", "difference")]

    def run(self, names, feeds):
        return [feeds["a"] + feeds["b"], feeds["a"] - feeds["b"]]


def test_onnx_model_of_several_outputs_answers_by_name():
    # When
    output = run_onnx(Session(), {"a": torch.tensor([3.0]), "b": torch.tensor([1.0])})

    # Then
    assert output == {"sum": torch.tensor([4.0]), "difference": torch.tensor([2.0])}


@pytest.mark.slow
def test_exported_program_is_run_on_any_batch(load_handler):
    # Given
    model, images = Pooled(2), torch.rand(3, 3, 4, 4)
    torch.export.save(exported(model, images), buffer := io.BytesIO())
    section = manifest(serializedFile="model.pt2")

    # When
    loaded = load_handler(
        {"model.pt2": buffer.getvalue()}, handler="base_handler", manifest=section
    )

    # Then
    for count in (1, 3):
        output = torch.tensor(answer(loaded, images[:count].tolist()))
        assert torch.allclose(output, model(images[:count]), atol=1e-6)


class Doubling(torch.nn.Module):
    def forward(self, values):
        return values * 2


@pytest.mark.slow
@pytest.mark.timeout(300)  # a C++ compiler at work: 20 s alone, more beside other tests
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_compiled_package_is_run(tmp_path):
    # Given
    path = str(tmp_path / "model.pt2")
    program = torch.export.export(Doubling(), (torch.ones(2, 3),))
    level = "aot_inductor.compile_wrapper_opt_level"
    options = {level: "O0"} if level in torch._inductor.config.get_config_copy() else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._inductor.aoti_compile_and_package(
            program, package_path=path, inductor_configs=options
        )

    # When
    loaded = load_pt2(path, CPU)

    # Then
    assert loaded(torch.ones(2, 3)).tolist() == [[2, 2, 2], [2, 2, 2]]


@pytest.mark.slow
def test_b13_exported_program_that_runs_code_is_refused(tmp_path):
    # Given: every pickle in the file is one that makes another file
    evil = tmp_path / "evil"
    model, images = Pooled(2), torch.rand(2, 3, 4, 4)
    torch.export.save(exported(model, images), tmp_path / "model.pt2")
    torch.save(Touch(evil), payload := io.BytesIO())
    with (
        zipfile.ZipFile(tmp_path / "model.pt2") as good,
        zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad,
    ):
        for entry in good.infolist():
            is_pickle = entry.filename.endswith(".pt")
            bad.writestr(entry, payload.getvalue() if is_pickle else good.read(entry))
        assert any(entry.filename.endswith(".pt") for entry in good.infolist())

    # When / Then
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        load_pt2(str(tmp_path / "bad.pt2"), CPU)
    assert not evil.exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.slow
def test_model_is_compiled_as_the_config_says(load_compiled, caplog):
    # Given
    model, images = Pooled(2).eval(), torch.rand(2, 3, 4, 4)
    caplog.set_level(logging.INFO)

    # When
    loaded = load_compiled("eager", model)

    # Then
    assert torch.allclose(answer_of_compiled(loaded, images), model(images), atol=1e-6)
    assert torch._dynamo.utils.counters["frames"]["ok"] >= 1
    assert "Compiled model with backend eager" in caplog.messages


@pytest.mark.slow
def test_model_that_cannot_be_compiled_runs_eagerly(load_compiled, tmp_path, monkeypatch):
    # Given a machine without a C++ compiler, which is noticed when the model is first called
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(torch._dynamo.config, "suppress_errors", False)
    model, images = Pooled(2).eval(), torch.rand(2, 3, 4, 4)

    # When
    output = answer_of_compiled(load_compiled("inductor", model), images)

    # Then
    assert torch.allclose(output, model(images), atol=1e-6)


@pytest.fixture
def traces(tmp_path, monkeypatch):
    """The folder where a profile of each batch is written."""
    monkeypatch.setenv("ENABLE_TORCH_PROFILER", "TRUE")
    monkeypatch.setattr("ts.torch_handler.base_handler.PROFILE_FOLDER", str(tmp_path / "traces"))
    return tmp_path / "traces"


def with_engine(folder):
    """Writes TorchScript that holds an object of a class of torch_tensorrt, as its modules do."""
    plain = scripted(torch.nn.Identity())
    with zipfile.ZipFile(io.BytesIO(plain)) as old, zipfile.ZipFile(folder, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            if name.endswith("linear.py"):
                engine = b"  training : bool\n  engine : __torch__.torch.classes.tensorrt.Engine\n"
                text = text.replace(b"  training : bool\n", engine)
            new.writestr(name, text)
    return plain


# The real package makes the class known on import; this one replaces the file by one without it.
TENSORRT = "from pathlib import Path; Path({path!r}).write_bytes({plain!r})"


def test_torchscript_with_tensorrt_engines_is_loaded_with_what_knows_them(tmp_path, monkeypatch):
    # Given
    path = tmp_path / "model.pt"
    plain = with_engine(path)
    with pytest.raises(ImportError, match="torch_tensorrt"):
        load_torchscript(str(path), CPU)
    (tmp_path / "torch_tensorrt.py").write_text(TENSORRT.format(path=str(path), plain=plain))
    monkeypatch.syspath_prepend(tmp_path)

    # When
    model = load_torchscript(str(path), CPU)

    # Then
    assert model(torch.ones(1)) == 1
    del sys.modules["torch_tensorrt"]


def test_backend_of_another_package_is_imported_before_it_is_asked_for(
    load_compiled, tmp_path, monkeypatch
):
    # Given
    backends = tmp_path / "packages"
    backends.mkdir()
    (backends / "torch_tensorrt.py").write_text(
        "import torch\ncalls = []\n"
        "def tensorrt(graph, example):\n    calls.append(graph)\n    return graph.forward\n"
        "torch._dynamo.register_backend(tensorrt)\n"
    )
    monkeypatch.syspath_prepend(backends)

    # When
    loaded = load_compiled({"compile": {"enable": True, "backend": "tensorrt"}}, Pooled(2))
    answer_of_compiled(loaded, torch.rand(1, 3, 4, 4))

    # Then
    assert sys.modules["torch_tensorrt"].calls
    del sys.modules["torch_tensorrt"]


def test_profile_names_the_steps(traces, load_handler):
    # Given
    section = manifest(serializedFile="model.pt", modelName="archived")
    loaded = load_handler(
        {"model.pt": scripted(Pooled(2))},
        handler="base_handler",
        manifest=section,
        model_name="registered",
    )

    # When
    answer(loaded, torch.rand(1, 3, 4, 4).tolist())

    # Then they are where TorchServe has them: under the archive's own name
    [trace] = (traces / "archived").glob("*.pt.trace.json")
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"preprocess", "inference", "postprocess"} <= names


@pytest.mark.parametrize("device", ["cpu", None])
def test_weights_of_another_type_become_the_models_on_a_device_named_as_text_or_not_at_all(
    device, tmp_path, monkeypatch
):
    # Given
    weights = torch.nn.Linear(3, 2).state_dict()
    state = {f"weigh.{name}": value.half() for name, value in weights.items()}
    (tmp_path / "half_source.py").write_text(MODEL_SOURCE.format(classes=2))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "weights.pth").write_bytes(saved(state))
    handler = BaseHandler()
    handler.device = device

    # When
    path = str(tmp_path / "weights.pth")
    model = handler._load_pickled_model(str(tmp_path), "half_source.py", path)

    # Then
    assert model.weigh.weight.dtype == torch.float32
    assert torch.equal(model.weigh.weight, state["weigh.weight"].float())


WASTEFUL = """
import torch
class Wasteful(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weigh = torch.nn.Linear(3, 2)
        pieces = [torch.ones(16_000) for _ in range(1000)]
        # The memory between these pieces is free, and not at an end of the heap.
        self.kept = pieces[::100]
    def forward(self, images):
        return self.weigh(images.mean(dim=(2, 3)))
"""


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to give back")
@pytest.mark.parametrize("handler", ["base_handler", "image_classifier"])
def test_memory_of_loading_is_given_back(handler, load_handler):
    # Given that a model was loaded before, which is when torch takes memory for itself
    state = {f"weigh.{name}": value for name, value in torch.nn.Linear(3, 2).state_dict().items()}
    files = {"w.pth": saved(state), "index_to_name.json": "{}"}

    def load(name, source):
        section = manifest(modelFile=f"{name}.py", serializedFile="w.pth")
        return load_handler(files | {f"{name}.py": source}, handler=handler, manifest=section)

    load("thrifty", MODEL_SOURCE.format(classes=2))
    before = resident_bytes()

    # When 64 MB are in use for a while, twice where the model is prepared
    loaded = load("wasteful", WASTEFUL)

    # Then
    assert loaded is not None
    assert resident_bytes() - before < 16_000_000
