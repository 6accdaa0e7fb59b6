"""Reads YAML from untrusted files."""

from typing import Any

import yaml


def load_yaml(text: str | bytes) -> Any:
    """Parses the one document of the text into plain Python values.

    Raises:
        ValueError: the text is not YAML, or has tags that make objects; the message is one line.
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
