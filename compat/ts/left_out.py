"""Names the modules that TorchServe has under `ts` and this package leaves out, with the reasons.

Importing such a module raises an error with the reason, not that the module does not exist.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_DALI = "NVIDIA DALI pipelines; decode images in `preprocess` instead"
_SPREAD = (
    "models that are spread over several processes by torchrun; a handler can put the parts of a "
    "model on several devices of its own process"
)
_DENSENET = "TorchServe's first image handler; use image_classifier"
_ASYNCHRONOUS = "handlers that answer out of order; run the engine inside of a handler of your own"
_FROM_HUBS = "downloads by handlers; call `snapshot_download` of huggingface_hub"
_FROM_FILES = "metrics that a handler reads from a file itself; those of metrics_config are there"
_TIMEIT = "a decorator that fails with every Python since 3.8; use handler_utils.timer"
_LAUNCHER = "functions that start and stop a server; run `ferry torchserve --start` and `--stop`"
_LLM_LAUNCHER = (
    "a command around handlers that answer out of order; start the server that vLLM or "
    "TensorRT-LLM brings"
)
_MEASURING = "TorchServe's measuring of its machine; each node measures its own"
_SERVER = (
    "TorchServe's own server and worker; a context for tests of handlers is in "
    "torch_handler.unit_tests"
)
_SERVICES = "base classes of TorchServe's predecessor; extend torch_handler.base_handler"

# Module or package -> the reason; everything below a package is left out with it.
LEFT_OUT = {
    "ts.arg_parser": _SERVER,
    "ts.async_service": _ASYNCHRONOUS,
    "ts.handler_utils.distributed": _SPREAD,
    "ts.handler_utils.preprocess": _DALI,
    "ts.launcher": _LAUNCHER,
    "ts.llm_launcher": _LLM_LAUNCHER,
    "ts.metrics.metric_cache_abstract": _FROM_FILES,
    "ts.metrics.metric_cache_yaml_impl": _FROM_FILES,
    "ts.metrics.metric_collector": _MEASURING,
    "ts.metrics.system_metrics": _MEASURING,
    "ts.model_loader": _SERVER,
    "ts.model_server": _SERVER,
    "ts.model_service": _SERVICES,
    "ts.model_service_worker": _SERVER,
    "ts.torch_handler.dali_handler": _DALI,
    "ts.torch_handler.dali_image_classifier": _DALI,
    "ts.torch_handler.dali_image_segmenter": _DALI,
    "ts.torch_handler.densenet_handler": _DENSENET,
    "ts.torch_handler.distributed": _SPREAD,
    "ts.torch_handler.trt_llm_handler": _ASYNCHRONOUS,
    "ts.torch_handler.vllm_handler": _ASYNCHRONOUS,
    "ts.utils.hf_utils": _FROM_HUBS,
    "ts.utils.timeit_decorator": _TIMEIT,
}


class LeftOutFinder(MetaPathFinder):
    """Refuses the modules in LEFT_OUT before Python looks for files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns None, so that Python goes on looking.

        Raises:
            ImportError: the module is left out.
        """
        if fullname in LEFT_OUT:
            raise ImportError(
                f"{fullname} is not part of torchferry, which leaves out {LEFT_OUT[fullname]}.",
                name=fullname,
            )
        return None


def install() -> None:
    """Makes imports of modules that are left out say why."""
    sys.meta_path.insert(0, LeftOutFinder())
