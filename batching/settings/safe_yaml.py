"""YAML files that nobody has vouched for, as the Python values that they describe."""

from typing import Any

import yaml


def load_yaml(text: str | bytes) -> Any:
    """Returns what the one document of the text describes, in plain Python values.

    Raises:
        ValueError: no YAML, or tags that make objects; its text is one line.
    """
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        words = ", ".join(filter(None, (error.context, error.problem)))
        raise ValueError(f"line {line}: {words}") from error
    except (AttributeError, LookupError) as error:
        raise ValueError("a value is not what its tag says") from error
    except (yaml.YAMLError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise ValueError(f"{type(error).__name__}: {first}") from error
