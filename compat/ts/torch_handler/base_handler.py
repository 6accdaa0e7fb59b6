"""Loads weights and runs preprocess → inference → postprocess: the base of most handlers.

Source: TorchServe 0.12 docs/custom_service.md and ts/torch_handler, as an interface.
"""

import importlib
import logging
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ts.handler_utils.utils import answer_batch, timed
from ts.torch_handler.weights import (
    give_back_memory,
    load_onnx,
    load_pt2,
    load_torchscript,
    run_onnx,
)
from ts.utils.util import (
    PredictionException,
    check_valid_pt2_backend,
    list_classes_from_module,
    load_label_mapping,
)

logger = logging.getLogger(__name__)

# torch.compile knows these backends only when their package has been imported.
_BACKEND_MODULES = {"openvino": "openvino.torch", "tensorrt": "torch_tensorrt"}
PROFILE_FOLDER = "/tmp/pytorch_profiler"  # noqa: S108 - where TorchServe's documentation says


class BaseHandler:
    """Runs a model on whole batches, in steps: `data` is a list of rows, the answer as long."""

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: dict[str, str] | None = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.model_pt_path: str | None = None
        self.manifest: Any = None
        self.map_location: str | None = None
        self.explain = False
        self.target: Any = 0
        self.profiler_args: dict[str, Any] = {}
        self.model_yaml_config: dict[str, Any] = {}

    def initialize(self, context: Any) -> None:
        """Loads the model onto its device, in evaluation mode.

        Raises:
            RuntimeError: there are no weights that this handler can load.
            ValueError: the model file does not define exactly one class.
        """
        self.context = context
        self.manifest = context.manifest
        self.model_yaml_config = getattr(context, "model_yaml_config", None) or {}
        properties = context.system_properties
        self.device = _pick_device(properties.get("gpu_id"))
        self.map_location = self.device.type
        model_dir = properties["model_dir"]
        model_section = self.manifest["model"]
        weights_file = model_section.get("serializedFile")
        # Set here, too: some handlers' `__init__` does not call this class's.
        self.model_pt_path = str(Path(model_dir) / weights_file) if weights_file else None
        self.model = self._load_model(model_dir, model_section.get("modelFile", ""))
        self._compile_model()
        self.mapping = load_label_mapping(Path(model_dir) / "index_to_name.json")
        give_back_memory()
        self.initialized = True

    def get_device(self) -> Any:
        return self.device

    def _load_model(self, model_dir: str, model_file: str) -> Any:
        if model_file:
            model = self._load_pickled_model(model_dir, model_file, self.model_pt_path)
            model.to(self.device)
            model.eval()
            return model
        weights = self.model_pt_path or ""
        if weights and not Path(weights).is_file():
            raise RuntimeError(f"Missing the model weights file {Path(weights).name}")
        if weights.endswith((".pt", ".pth", ".ts")):
            model = self._load_torchscript_model(weights)
            model.eval()
            return model
        if weights.endswith(".onnx"):
            return load_onnx(weights, self.device)
        if weights.endswith((".pt2", ".so")):
            return self._load_torch_export_aot_compile(weights)
        raise RuntimeError("No model weights could be loaded")

    # Some handlers override this method and the next two.
    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        return load_torchscript(model_pt_path, self.device)

    def _load_torch_export_aot_compile(self, model_so_path: str) -> Any:
        if not model_so_path.endswith(".so"):
            return load_pt2(model_so_path, self.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # the loader knows no device number
        return torch._export.aot_load(model_so_path, self.device.type)  # noqa: SLF001

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: Any) -> Any:
        if not (Path(model_dir) / model_file).is_file():
            raise RuntimeError("Missing the model.py file")
        module = importlib.import_module(Path(model_file).stem)
        classes = list_classes_from_module(module)
        if len(classes) != 1:
            raise ValueError(f"Expected only one class as model definition. {classes}")
        model = classes[0]()
        if model_pt_path:
            # A checkpoint that would run code is refused.
            state = torch.load(model_pt_path, map_location=self.device, weights_only=True)
            model.load_state_dict(state)
        return model

    def _compile_model(self) -> None:
        options = self._compile_options()
        if options is None or not isinstance(self.model, torch.nn.Module):
            return
        try:
            # It compiles at the first call, and an error would fail that request.
            torch._dynamo.config.suppress_errors = True  # noqa: SLF001 - documented, under this name
            if module := _BACKEND_MODULES.get(options.get("backend", "")):
                importlib.import_module(module)
            self.model = torch.compile(self.model, **options)
            chosen = ", ".join(f"{name} {value}" for name, value in options.items())
            logger.info("Compiled model with %s", chosen)
        except Exception:
            logger.exception("torch.compile failed; the model runs eagerly")

    def _compile_options(self) -> dict[str, Any] | None:
        """Returns torch.compile's arguments from `pt2` in model-config.yaml; None: no compiling."""
        pt2 = self.model_yaml_config.get("pt2")
        options = {"backend": pt2} if isinstance(pt2, str) else pt2
        if not isinstance(options, dict) or "export" in options:
            return None
        if "compile" in options:
            options = dict(options["compile"] or {})
            if options.pop("enable", False) is not True:
                return None
        backend = options.get("backend")
        return None if backend and not check_valid_pt2_backend(backend) else options

    @timed
    def preprocess(self, data: Any) -> Any:
        return torch.as_tensor(data, device=self.device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the model over the batch, without gradients.

        TorchServe leaves the call of an onnxruntime session to the handler; this method makes it.
        """
        if not callable(self.model):
            return run_onnx(self.model, data)
        with torch.inference_mode():
            return self.model(data.to(self.device), *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        return data.tolist()  # type: ignore[no-any-return]

    def handle(self, data: Any, context: Any) -> list[Any]:
        return answer_batch(self, data, context, self._run_steps)

    def _run_steps(self, data: Any, label: Callable[[str], Any] = nullcontext) -> list[Any]:
        with label("preprocess"):
            preprocessed = self.preprocess(data)
        if self._is_explain():
            with label("explain"):
                return self.explain_handle(preprocessed, data)
        with label("inference"):
            output = self.inference(preprocessed)
        with label("postprocess"):
            return self.postprocess(output)

    def _infer_with_profiler(self, data: Any) -> tuple[list[Any], Any]:
        self.profiler_args.setdefault("record_shapes", True)
        if "on_trace_ready" not in self.profiler_args:
            # Handlers with an `initialize` of their own may have no manifest.
            model = (self.manifest or {}).get("model", {})
            folder = Path(PROFILE_FOLDER) / model.get("modelName", self.context.model_name)
            write = torch.profiler.tensorboard_trace_handler(str(folder))
            self.profiler_args["on_trace_ready"] = write
        with torch.profiler.profile(**self.profiler_args) as profiler:
            output = self._run_steps(data, torch.profiler.record_function)
        logger.info("%s", profiler.key_averages().table(sort_by="cpu_time_total", row_limit=10))
        return output, profiler

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> list[Any]:
        row = raw_data[0] if raw_data and isinstance(raw_data[0], dict) else {}
        inputs, target = row.get("data") or row.get("body"), row.get("target") or 0
        is_text = isinstance(target, bytes | bytearray | str)  # as of a form's field
        return self.get_insights(data_preprocess, inputs, int(target) if is_text else target)  # type: ignore[no-any-return]

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> Any:
        """Explains the model's decisions; handlers that can do so override it."""
        raise NotImplementedError(f"{type(self).__name__} does not explain its predictions")

    def describe_handle(self) -> Any:
        """Returns what `GET /models/M?customized=true` shows; handlers override it."""

    def _is_explain(self) -> bool:
        is_asked = bool(self.context) and self.context.get_request_header(0, "explain") == "True"
        if is_asked:
            self.explain = True  # as in TorchServe, it stays
        return is_asked

    def _is_describe(self) -> bool:
        return bool(self.context) and self.context.get_request_header(0, "describe") == "True"


def _pick_device(gpu_id: Any) -> torch.device:
    if gpu_id is None:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device(f"cuda:{gpu_id}")
    if os.environ.get("TS_IPEX_GPU_ENABLE", "false").lower() == "true":
        return torch.device(f"xpu:{gpu_id}")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    logger.error(
        "GPU %s is there, but torch %s does not see it; the model runs on the CPU. Install a torch "
        "for this driver's CUDA (nvidia-smi names it), or set number_of_gpu=0.",
        *(gpu_id, torch.__version__),
    )
    return torch.device("cpu")


def captum_attributions() -> ModuleType:
    """Imports captum.attr, which explains predictions; without it, clients get status 501."""
    try:
        return importlib.import_module("captum.attr")
    except ImportError as error:
        raise PredictionException("Explanations need the package captum.", 501) from error
