"""Makes the built-in image handlers faster at equal answers; one switch turns all of it off."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

_OFF = (False, "off")  # YAML reads a plain `off` as false


def is_on(config: Mapping[str, Any]) -> bool:
    """Returns whether neither model-config.yaml nor the server's setting says `off`."""
    is_off = config.get("acceleration") in _OFF or os.environ.get("FERRY_ACCELERATION") == "off"
    return not is_off


def choice(config: Mapping[str, Any], key: str, names: Iterable[str]) -> str:
    """Returns model-config.yaml's name under `key`; by default, the first of `names`."""
    known = list(names)
    name = config.get(key, known[0])
    if name not in known:
        raise ValueError(f"{key} in model-config.yaml must be one of {', '.join(known)}.")
    return str(name)
