"""Finds what the machine has: devices, the package `ts`, a safe torch. Never loads torch."""

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# CVE-2025-32434: up to 2.5.1 a checkpoint could run code in spite of weights_only=True.
MIN_TORCH = (2, 6)
_WORKERS = Path(__file__).resolve().parent
_GPU_FOLDER = Path("/proc/driver/nvidia/gpus")
_QUERY_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Device:
    """Names a device: `kind` is `cpu` or `cuda`, `index` counts the GPUs this process may see."""

    kind: str
    index: int | None = None

    def __str__(self) -> str:
        return self.kind if self.index is None else f"{self.kind}:{self.index}"


def list_gpus(limit: int) -> list[int]:
    """Returns the indexes of at most `limit` usable GPUs (-1: all).

    As in CUDA, only the devices in CUDA_VISIBLE_DEVICES count, from 0 on.
    """
    # Where the driver does not answer, the kernel knows them, too.
    count = len(list(_GPU_FOLDER.iterdir())) if _GPU_FOLDER.is_dir() else 0
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if (listing := ask_nvidia_smi("-L")) is not None:
            count = sum(line.startswith("GPU ") for line in listing)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if count and visible is not None:
        count = _count_visible(visible, count)
    return list(range(count if limit < 0 else min(count, limit)))


def ask_nvidia_smi(*arguments: str) -> list[str] | None:
    """Returns the lines that nvidia-smi prints; None where it is not installed.

    Raises OSError or SubprocessError if the driver does not answer.
    """
    if (program := shutil.which("nvidia-smi")) is None:
        return None
    answer = subprocess.run(  # noqa: S603 - a fixed argument list
        [program, *arguments], capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=True
    )
    return answer.stdout.splitlines()


def _count_visible(visible: str, count: int) -> int:
    """Returns how many of `count` GPUs CUDA takes: all before the first unknown entry, such as -1.

    A process gets one part of a GPU (MIG) at most.
    """
    known = 0
    for entry in (part.strip() for part in visible.split(",")):
        if entry.startswith("MIG-"):
            return max(known, 1)
        if not (entry.startswith("GPU-") or (entry.isdecimal() and int(entry) < count)):
            break
        known += 1
    return min(known, count)


def ts_folder() -> Path:
    """Returns the folder that holds `ts`: beside this package in a checkout, within it in a wheel.

    A wheel must not put a package called `compat` into a user's site-packages.
    """
    installed = _WORKERS / "compat"
    return installed if installed.is_dir() else _WORKERS.parent / "compat"


def require_safe_torch() -> None:
    """Raises ImportError if torch is too old; handlers may do without torch."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    match = re.match(r"(\d+)\.(\d+)", version)
    if match and (int(match[1]), int(match[2])) < MIN_TORCH:
        raise ImportError(f"torch {version} loads malicious checkpoints: 2.6 or later is needed")
