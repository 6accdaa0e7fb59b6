"""Measures whether half precision is worth it."""

from collections.abc import Callable
from timeit import timeit

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

ROUNDS = 20


def times_of_float32(dtype: torch.dtype) -> float:
    """Measures how many times as long as in float32 a convolution takes this processor in `dtype`.

    The features that a processor reports are no answer: with AVX512_BF16, but without AMX, Intel's
    issue the products of bfloat16 at little more than half the rate of float32's.
    """
    plain, half = _convolution(torch.float32), _convolution(dtype)
    # In turns, as the machine may be slower for a while; the first round loads the kernels.
    pairs = [(timeit(plain, number=1), timeit(half, number=1)) for _ in range(ROUNDS)]
    plain_s, half_s = (min(times_s) for times_s in zip(*pairs, strict=True))
    return half_s / plain_s


def _convolution(dtype: torch.dtype) -> Callable[[], object]:
    """Returns a call of one convolution from the middle of a ResNet, over one row."""
    layer = torch.nn.Conv2d(256, 256, kernel_size=3, padding=1, bias=False)
    layer = layer.to(dtype, memory_format=torch.channels_last)
    image = torch.ones(1, 256, 14, 14, dtype=dtype).to(memory_format=torch.channels_last)
    return lambda: layer(image)
