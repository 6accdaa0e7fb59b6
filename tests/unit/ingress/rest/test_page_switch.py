"""Where browsers are shown the page."""

from pathlib import Path

import pytest

from batching.settings.settings import Settings
from ingress.role import has_page

LOCAL, OPEN, SOCKET = "http://127.0.0.1:8080", "http://0.0.0.0:8080", "unix:/run/ferry.sock"


@pytest.mark.parametrize(
    ("page", "address", "is_there"),
    [
        ("loopback", LOCAL, True),
        ("loopback", "http://localhost:8080", True),
        ("loopback", "https://[::1]:8080", True),
        ("loopback", OPEN, False),
        # Behind a proxy, whose clients may be anybody.
        ("loopback", SOCKET, False),
        ("on", OPEN, True),
        ("on", SOCKET, True),
        ("off", LOCAL, False),
    ],
)
def test_page_is_there_where_the_setting_says(page, address, is_there):
    # When / Then
    assert has_page(Settings(page=page, inference_address=address)) is is_there


@pytest.mark.parametrize("keys", [{"token_auth": True}, {"key_file": Path("keys.json")}])
def test_page_is_never_there_with_tokens(keys):
    # When / Then
    for page in ("on", "loopback"):
        assert not has_page(Settings(page=page, **keys))
