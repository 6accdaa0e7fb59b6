"""`ferry status`: the reason why a server is not ready, which a proxy may give instead."""

import httpx
import pytest

from ferry.commands.status import _reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"status": "No ready worker: m"}', "No ready worker: m"),
        (b'{"code": 400, "message": "Token failed"}', "Token failed"),
        (b"<h1>Bad gateway</h1>\n", "<h1>Bad gateway</h1>"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (b'["status"]', '["status"]'),
        (b"", "Service Unavailable"),
    ],
)
def test_reason_is_what_the_answer_says(content, reason):
    assert _reason(httpx.Response(503, content=content)) == reason
