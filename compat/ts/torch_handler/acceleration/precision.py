"""Precisions a model computes in, and whether a lower one is worth it."""

import time

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

ROUNDS = 20


def read_dtype(name: object) -> torch.dtype:
    """Returns the precision that `dtype` in model-config.yaml asks for.

    Raises:
        ValueError: there is no such one.
    """
    if name not in DTYPES:
        raise ValueError(f"dtype in model-config.yaml must be one of {', '.join(DTYPES)}.")
    return DTYPES[str(name)]


def times_of_float32(dtype: torch.dtype) -> float:
    """How many times as long as in float32 this processor takes for a convolution in `dtype`.

    What a processor says it has is no answer: with AVX512_BF16, but without AMX, Intel's issue the
    products of bfloat16 at little more than half the rate of float32's.
    """
    plain, half = _Convolution(torch.float32), _Convolution(dtype)
    # In turns, as the machine may be slower for a while; the first round loads the kernels.
    pairs = [(plain.seconds(), half.seconds()) for _ in range(ROUNDS)]
    plain_s, half_s = (min(times_s) for times_s in zip(*pairs, strict=True))
    return half_s / plain_s


class _Convolution:
    """One of the middle of a ResNet, over one row."""

    def __init__(self, dtype: torch.dtype) -> None:
        layer = torch.nn.Conv2d(256, 256, kernel_size=3, padding=1, bias=False)
        self._layer = layer.to(dtype, memory_format=torch.channels_last)
        image = torch.ones(1, 256, 14, 14, dtype=dtype)
        self._image = image.to(memory_format=torch.channels_last)

    def seconds(self) -> float:
        started_s = time.perf_counter()
        self._layer(self._image)
        return time.perf_counter() - started_s
