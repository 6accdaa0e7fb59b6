"""Maps classes to labels, finds classes, and has the exception that sets a client's status."""

import inspect
import itertools
import json
import logging
import re
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

logger = logging.getLogger(__name__)

# No repetition in it can match an ampersand, so no part of a text is read more than twice.
ENTITY = "&(?:[a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});"
CLEANUP_REGEX = re.compile(f"<.*?>|{ENTITY}")


class PredictionException(Exception):
    """Answers the client with `message` and status `error_code`."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


def emit_metrics(metrics: Any) -> None:
    """Does nothing: the metrics in `context.metrics` are emitted anyway."""


PT2Backend = StrEnum(
    "PT2Backend",
    "EAGER AOT_EAGER INDUCTOR NVFUSER AOT_NVFUSER AOT_CUDAGRAPHS OFI FX2TRT ONNXRT IPEX "
    "TORCHXLA_TRACE_ONCE OPENVINO TENSORRT HPU_BACKEND",
)


def check_valid_pt2_backend(backend: str) -> bool:
    is_known = backend in set(PT2Backend)
    if not is_known:
        logger.warning("%s is not a supported torch.compile backend", backend)
    return is_known


def get_yaml_config(yaml_file_path: str | Path) -> Any:
    return yaml.safe_load(Path(yaml_file_path).read_text(encoding="utf-8"))


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """Returns the classes that a module defines itself, in the order of their names."""
    return [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if member.__module__ == module.__name__
        and (parent_class is None or issubclass(member, parent_class))
    ]


def load_label_mapping(mapping_file_path: str | Path) -> dict[str, str] | None:
    """Returns class number as text → label; None without the file.

    Accepts {"0": "label"}, {"0": ["id", "label"]} and {"object_type_names": ["label", ...]}; other
    forms are a ValueError.
    """
    path = Path(mapping_file_path)
    if not path.is_file():
        logger.warning("%s is missing: answers name classes by number", path.name)
        return None
    mapping = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(mapping, dict):
        raise ValueError(f"{path.name} must be a JSON object of class number and label")
    if isinstance(names := mapping.get("object_type_names"), list):
        mapping = {str(number): name for number, name in enumerate(names)}
    labels = {key: name[-1] if isinstance(name, list) else name for key, name in mapping.items()}
    if not all(isinstance(label, str) for label in labels.values()):
        raise ValueError(f"{path.name}: a label must be text or a list that ends in text")
    return labels


def map_class_to_label(
    probs: list[list[Any]],
    mapping: dict[str, str] | None = None,
    lbl_classes: Iterable[Iterable[Any]] | None = None,
) -> list[dict[str, Any]]:
    """Returns one {label: probability} per row, in the order given.

    Args:
        probs: rows of probabilities.
        mapping: class number as text → label; without it the number is the label.
        lbl_classes: for each row the class numbers; 0, 1, 2, … when left out.

    Raises:
        TypeError: a tensor instead of lists, or a mapping that is not a dict.
    """
    if not isinstance(probs, list):
        raise TypeError("probs must be a list: call .tolist() first")
    if mapping is not None and not isinstance(mapping, dict):
        raise TypeError("mapping must be a dict of class number and label")
    if lbl_classes is None:
        lbl_classes = itertools.repeat(range(len(probs[0])), len(probs)) if probs else []
    return [
        {
            mapping[str(number)] if mapping is not None else str(number): probability
            for number, probability in zip(classes, row, strict=False)
        }
        for classes, row in zip(lbl_classes, probs, strict=False)
    ]


def has_too_many_pixels(error: Exception) -> bool:
    """Returns whether Pillow has refused an image beyond `max_image_pixels`, in any handler."""
    image: Any = sys.modules.get("PIL.Image")
    bombs = () if image is None else (image.DecompressionBombError, image.DecompressionBombWarning)
    return isinstance(error, bombs)


def too_many_pixels() -> PredictionException:
    limit = sys.modules["PIL.Image"].MAX_IMAGE_PIXELS
    return PredictionException(
        f"Input is not a readable image: it has more than {limit} pixels (max_image_pixels).", 400
    )
