"""Keys of model-config.yaml that ask for what is left out: such a model would answer wrongly."""

from collections.abc import Mapping
from typing import Any

from batching.errors import InvalidModel

_ONE_PROCESS = "a model cannot be spread over several processes"
# Key -> why the handler that needs it will not do what it should.
NOT_HERE: Mapping[str, str] = {
    "torchrun": _ONE_PROCESS,
    "parallelType": _ONE_PROCESS,
    "asyncCommunication": "handlers answer a whole batch at once",
    "continuousBatching": "a batch stays as it was formed until the handler returns",
    "sequenceBatching": "requests of one sequence may go to different workers",
}


def why_not_here(key: str, value: Any) -> str:
    """Why a model whose config says this cannot be served as it is meant to; "" if it can."""
    is_harmless = not value or (key, value) == ("parallelType", "custom")
    if key not in NOT_HERE or is_harmless:
        return ""
    return f"{key}: {value} has no counterpart: {NOT_HERE[key]}"


def require_served(config: Mapping[str, Any]) -> None:
    """Nothing that the config asks for is left out.

    Raises:
        InvalidModel: something is; its text says what, and why.
    """
    reasons = [reason for key, value in config.items() if (reason := why_not_here(key, value))]
    if reasons:
        raise InvalidModel(
            f"model-config.yaml: {'; '.join(reasons)}. A handler that can do without is served "
            "once the archive does not say so."
        )
