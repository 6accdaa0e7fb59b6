import pytest

from batching.errors import BadRequest
from ingress.rest.paging import read_limit


@pytest.mark.parametrize(
    ("query", "limit"),
    [
        ({}, 100),
        ({"limit": ""}, 100),
        ({"limit": "1"}, 1),
        ({"limit": "007"}, 7),
        ({"limit": "1001"}, 1000),
        ({"limit": "9" * 5000}, 1000),
    ],
)
def test_limit_is_read_and_bounded(query, limit):
    assert read_limit(query, 1000) == limit


@pytest.mark.parametrize(
    "text", ["x", "0", "00", "-1", "+1", "1.5", "1e2", " 1", "\u00b2", "\u0663"]
)
def test_limit_that_is_none_is_told(text):
    with pytest.raises(BadRequest, match="limit must be a whole number, 1 or more"):
        read_limit({"limit": text}, 1000)
