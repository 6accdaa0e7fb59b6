"""What is wrong with a registration, as far as it can be told before its archive is fetched."""

from collections.abc import Mapping
from typing import Any

from batching.model_spec import ArchiveInfo, ModelDefaults, spec_from_registration

# Of all that a parameter may leave open, it says something itself.
_ANY_ARCHIVE = ArchiveInfo(
    url="",
    sha256="",
    model_name="any",
    model_version="1.0",
    handler="",
    runtime="python",
    manifest=None,
    config={
        "batchPolicy": "adaptive",
        "minWorkers": 1,
        "maxWorkers": 1,
        "responseTimeout": 1,
        "startupTimeout": 1,
    },
)


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Some archive could be registered with these parameters of `POST /models`.

    Raises:
        BadRequest: none could, so none has to be fetched.
    """
    spec_from_registration(parameters, _ANY_ARCHIVE, ModelDefaults())
