"""`ferry status`: the reason why a server is not ready, which a proxy may give instead."""

import httpx
import pytest

from ferry.commands.status import _print, _reason, _summary


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"status": "No ready worker: m"}', "No ready worker: m"),
        (b'{"code": 400, "message": "Token failed"}', "Token failed"),
        (b"<h1>Bad gateway</h1>\n", 'a page, "Bad gateway"'),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (b'["status"]', '["status"]'),
        (b"", "Service Unavailable"),
    ],
)
def test_reason_is_what_the_answer_says(content, reason):
    assert _reason(httpx.Response(503, content=content)) == reason


def test_errors_of_versions_and_of_their_workers_are_shown_each_once(capsys):
    # Given
    described = {
        "modelName": "m",
        "modelVersion": "1.0",
        "minWorkers": 2,
        "jobQueueStatus": {"pendingRequests": 0, "remainingCapacity": 100},
        "workers": [{"node": "n", "status": "UNLOADING", "error": "No [GPU]"}] * 2,
    }
    gone = described | {"modelVersion": "2.0", "workers": [], "error": "Not found"}
    record = {"ready": True, "reason": "", "nodes": {"n": 2}, "hosts": {"n": ""}}
    # When
    _print(record | {"models": [_summary(version) for version in (described, gone)]})
    # Then
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["not loaded: m 1.0: No [GPU]", "not loaded: m 2.0: Not found"]
