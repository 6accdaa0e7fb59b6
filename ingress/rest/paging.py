"""Reads how many entries of a list a client wants on a page."""

import re
from collections.abc import Mapping

from batching.errors import BadRequest

USUAL_PAGE = 100

_LIMIT = re.compile(r"0*([1-9][0-9]*)")


def read_limit(parameters: Mapping[str, str], most: int) -> int:
    """Returns `limit`: of the lists that TorchServe does not have, whose limit is never ignored.

    Args:
        parameters: of the query; an empty value counts as none.
        most: what more than this becomes.

    Raises:
        BadRequest: not a whole number, or less than 1.
    """
    text = parameters.get("limit", "")
    if not text:
        return USUAL_PAGE
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise BadRequest(
            f"limit must be a whole number, 1 or more; a page has {USUAL_PAGE} entries without it, "
            f"and {most:,} at most."
        )
    return min(int(found[1][:9]), most)  # Python reads no number of 5,000 digits
