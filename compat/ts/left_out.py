"""Names the modules that TorchServe has under `ts` and this package leaves out, with the reasons.

Importing such a module raises an error with the reason.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Reason -> modules and packages; everything below a package is left out with it.
_MODULES = {
    "NVIDIA DALI pipelines; decode images in `preprocess` instead": (
        "handler_utils.preprocess",
        "torch_handler.dali_handler",
        "torch_handler.dali_image_classifier",
        "torch_handler.dali_image_segmenter",
    ),
    "models that are spread over several processes by torchrun; a handler can put the parts of a "
    "model on several devices of its own process": (
        "handler_utils.distributed",
        "torch_handler.distributed",
    ),
    "handlers that answer out of order; run the engine inside of a handler of your own, or start "
    "the server that vLLM or TensorRT-LLM brings": (
        "async_service",
        "llm_launcher",
        "torch_handler.trt_llm_handler",
        "torch_handler.vllm_handler",
    ),
    "metrics that a handler reads from a file itself; those of metrics_config are there": (
        "metrics.metric_cache_abstract",
        "metrics.metric_cache_yaml_impl",
    ),
    "TorchServe's measuring of its machine; each node measures its own": (
        "metrics.metric_collector",
        "metrics.system_metrics",
    ),
    "TorchServe's own server and worker; a context for tests of handlers is in "
    "torch_handler.unit_tests": (
        "arg_parser",
        "model_loader",
        "model_server",
        "model_service_worker",
    ),
    "functions that start and stop a server; run `ferry torchserve --start` and `--stop`": (
        "launcher",
    ),
    "base classes of TorchServe's predecessor; extend torch_handler.base_handler": (
        "model_service",
    ),
    "TorchServe's first image handler; use image_classifier": ("torch_handler.densenet_handler",),
    "downloads by handlers; call `snapshot_download` of huggingface_hub": ("utils.hf_utils",),
    "a decorator that fails with every Python since 3.8; use handler_utils.timer": (
        "utils.timeit_decorator",
    ),
}
LEFT_OUT = {f"ts.{name}": reason for reason, names in _MODULES.items() for name in names}


class LeftOutFinder(MetaPathFinder):
    """Refuses the modules in LEFT_OUT before Python looks for files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in LEFT_OUT:
            raise ImportError(
                f"{fullname} is not part of torchferry, which leaves out {LEFT_OUT[fullname]}.",
                name=fullname,
            )
        return None


def install() -> None:
    sys.meta_path.insert(0, LeftOutFinder())
