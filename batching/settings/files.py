"""Reads files that people wrote, and writes files that appear whole or not at all."""

import os
import tempfile
from pathlib import Path
from typing import Any

import javaproperties
import yaml

from batching.settings.settings import SettingsError


def write_atomically(path: Path, text: str) -> None:
    """Writes the text so that no reader sees half of it, even after a power failure.

    Only the owner may read the file. After an OSError it is unchanged, and no other file is left.
    """
    # In the same folder, because a rename cannot leave a file system. mkstemp makes it 0600.
    number, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
    except BaseException:
        # On a full disk each of many attempts would leave a file.
        unfinished.unlink(missing_ok=True)
        raise


def load_yaml(text: str | bytes) -> Any:
    """Parses a text of one document into plain Python values.

    A ValueError, of one line, says that the text is not YAML, or has tags that make objects.
    """
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise ValueError(f"line {line}: {problem}") from error
    except (AttributeError, LookupError) as error:
        raise ValueError("a value is not what its tag says") from error
    except (yaml.YAMLError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise ValueError(f"{type(error).__name__}: {first}") from error


def read_properties(path: Path) -> dict[str, str]:
    """Returns the file's keys and values, unparsed; raises SettingsError if it cannot be read.

    The file may be UTF-8, or else Latin-1 as in Java: a comment may be in any encoding.
    """
    try:
        content = path.read_bytes()
        if b"\0" in content:
            raise ValueError("it is no text")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("latin-1")
        return dict(javaproperties.loads(text))
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
