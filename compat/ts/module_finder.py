"""Finds modules of TorchServe's that lie elsewhere here, and says why others are left out."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Where TorchServe has a module -> the module that has its names here.
_ELSEWHERE = {
    "ts.handler_utils.timer": "ts.handler_utils.utils",
    **{
        f"ts.metrics.{name}": "ts.metrics"
        for name in (
            *("caching_metric", "dimension", "metric", "metric_cache_errors", "metric_encoder"),
            *("metric_type_enum", "metrics_store", "process_memory_metric", "unit"),
        )
    },
    "ts.protocol": "ts.handler_utils",
    "ts.protocol.otf_message_handler": "ts.handler_utils.utils",
    "ts.service": "ts.utils.util",
    "ts.torch_handler.contractions": "ts.handler_utils.text_utils",
    "ts.version": "ts",
    **{
        f"ts.torch_handler.request_envelope.{name}": "ts.torch_handler.request_envelope"
        for name in ("base", "body", "json", "kserve", "kservev2")
    },
}
# Reason -> modules and packages; everything below a package is left out with it.
_MODULES = {
    "NVIDIA DALI pipelines; decode images in `preprocess` instead": (
        "handler_utils.preprocess",
        "torch_handler.dali_handler",
        "torch_handler.dali_image_classifier",
        "torch_handler.dali_image_segmenter",
    ),
    "models in several processes of torchrun; one process may put parts on several devices": (
        "handler_utils.distributed",
        "torch_handler.distributed",
    ),
    "handlers that answer out of order; run the engine in a handler, or vLLM's own server": (
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
    "TorchServe's own server and worker; torch_handler.unit_tests has a context for tests": (
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


class ModuleFinder(MetaPathFinder, Loader):
    """Is asked before Python looks for files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in LEFT_OUT:
            raise ImportError(
                f"{fullname} is not part of torchferry, which leaves out {LEFT_OUT[fullname]}.",
                name=fullname,
            )
        return ModuleSpec(fullname, self) if fullname in _ELSEWHERE else None

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what stands there afterwards.
        name = module.__name__
        sys.modules[name] = importlib.import_module(_ELSEWHERE[name])
