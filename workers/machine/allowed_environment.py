"""The environment variables that handlers and pip may see."""

import re
from collections.abc import Mapping


def allowed_environment(environment: Mapping[str, str], pattern: str) -> dict[str, str]:
    """Returns the variables whose names do not match the pattern as a whole; all when it is empty.

    Source: TorchServe 0.12 `EnvironmentUtils`, blacklist_env_vars.
    """
    if not pattern:
        return dict(environment)
    expression = re.compile(pattern)
    return {name: text for name, text in environment.items() if not expression.fullmatch(name)}
