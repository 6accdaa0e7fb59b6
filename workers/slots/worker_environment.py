"""The environment of a worker process."""

import os
import site
from dataclasses import replace
from pathlib import Path

from batching.settings.settings import Settings
from workers.archives.installer import allowed_environment
from workers.archives.model_files import home_cache, is_writable
from workers.machine import ts_folder
from workers.slots.assignment import Assignment

# A batch's intermediate tensors have tens of megabytes each. By default glibc fetches such memory
# from the kernel and gives it back for every batch, page by page: a tenth of a ResNet-152's time.
# Like this, a worker keeps the memory that it has used, until `SpareMemory` has it give some back.
# Other C libraries ignore these variables.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(64 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(8 * 1024 * 1024 * 1024),
}

# How many cores a worker computes on, as OpenMP and MKL are told.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# GPUs are numbered as by nvidia-smi, and with it /metrics, not with the fastest one first.
GPU_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def worker_environment(assignment: Assignment, settings: Settings, threads: int) -> dict[str, str]:
    """Returns a worker's variables: its own, and this process's, except forbidden ones.

    For the allocator and the threads, the operator's own values win.
    """
    return {
        **ALLOCATOR,
        **dict.fromkeys(THREADS, str(threads)),
        **GPU_ORDER,
        **allowed_environment(os.environ, settings.blacklist_env_vars),
        **_caches(settings),
        # It works in the model's folder, where relative paths would lead elsewhere. A handler that
        # knew the secrets could sign messages.
        **replace(settings.absolute(), webhook_secrets="").to_environment(),
        **assignment.to_environment(),
        "PYTHONPATH": _python_path(),
        "PYTHONUNBUFFERED": "1",
    }


def _caches(settings: Settings) -> dict[str, str]:
    # Handlers download weights, as by torch.hub, into a folder that this user may not write.
    home = home_cache()
    if settings.work_dir is None or (home is not None and is_writable(home)):
        return {}
    return {"XDG_CACHE_HOME": str(settings.work_dir.absolute() / "caches")}


def _python_path() -> str:
    compat_dir = str(ts_folder())
    root = str(Path(__file__).resolve().parents[2])
    # Installed packages are found anyway, and must not come before a model's own. Their folder may
    # be a link: /opt/torchferry, to the release in use.
    own = "" if root in map(os.path.realpath, site.getsitepackages()) else root
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(part for part in (compat_dir, own, inherited) if part)
