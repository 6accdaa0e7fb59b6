"""YAML files that nobody has vouched for, as the Python values that they describe."""

from typing import Any

import yaml

# Of a file with its aliases written out: each value counts as one character more than its text.
MAX_EXPANDED_CHARS = 1024**2


def load_yaml(text: str | bytes) -> Any:
    """Returns what the one document of the text describes, in plain Python values.

    Raises:
        ValueError: no YAML, tags that make objects, or aliases that repeat too much; in one line.
    """
    try:
        # A SafeLoader that counts.
        return yaml.load(text, Loader=_BoundedLoader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        words = ", ".join(filter(None, (error.context, error.problem)))
        raise ValueError(f"line {line}: {words}") from error
    except (AttributeError, LookupError) as error:
        raise ValueError("a value is not what its tag says") from error
    except (yaml.YAMLError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise ValueError(f"{type(error).__name__}: {first}") from error


class _BoundedLoader(yaml.SafeLoader):
    """Refuses aliases that would make a few lines a gigabyte, or a value a part of itself.

    Aliases cost nothing until somebody walks through them: the constructor for `<<`, or whoever
    writes the values down. So they are counted before, with all that they name.
    """

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._chars = 0
        self._chars_by_anchor: dict[str | None, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Returns the next value, counted."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._chars
        self._count(self._own_chars(event))
        node = super().compose_node(parent, index)
        if event.anchor is not None and not isinstance(event, yaml.AliasEvent):
            self._chars_by_anchor[event.anchor] = self._chars - before
        return node

    def _own_chars(self, event: yaml.Event) -> int:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self.anchors and event.anchor not in self._chars_by_anchor:
                raise ValueError(f"the alias {event.anchor!r} is part of what it names")
            return self._chars_by_anchor.get(event.anchor, 0)
        return 1 + len(getattr(event, "value", ""))

    def _count(self, chars: int) -> None:
        self._chars += chars
        if self._chars > MAX_EXPANDED_CHARS:
            raise ValueError(f"more than {MAX_EXPANDED_CHARS} characters, aliases written out")
