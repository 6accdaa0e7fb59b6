"""Makes the built-in image handlers faster at equal answers; one switch turns all of it off."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

# The setting `acceleration`, as worker processes are told.
VARIABLE = "FERRY_ACCELERATION"
_OFF = (False, "off")  # YAML reads a plain `off` as false


def is_on(config: Mapping[str, Any]) -> bool:
    """Returns whether a model is accelerated, by its model-config.yaml and the server's setting.

    Either can turn it off; neither turns on what the other has turned off.
    """
    return config.get("acceleration", "on") not in _OFF and os.environ.get(VARIABLE) != "off"


def choice(config: Mapping[str, Any], key: str, names: Iterable[str]) -> str:
    """Returns the name that model-config.yaml has under `key`, by default the first of `names`.

    Raises:
        ValueError: another name than these.
    """
    known = list(names)
    name = config.get(key, known[0])
    if name not in known:
        raise ValueError(f"{key} in model-config.yaml must be one of {', '.join(known)}.")
    return str(name)
