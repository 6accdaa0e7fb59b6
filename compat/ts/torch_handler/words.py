"""The words of a batch, as handlers find them beside the tokens.

Not in text_classifier.py: of the classes of its module, a handler has to be the only one.
"""

from collections.abc import Sequence


class Words(list[str]):
    """The words of all rows in a line; `starts` says where the tokens of each row begin."""

    starts: Sequence[int] = (0,)
