"""`ferry shadow` with a recording, between two small servers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from ferry.main import main
from packages.moving.tests.upstream import Upstream
from tests.ports import free_ports
from tests.support import eventually

TWO = [{"path": "/predictions/m", "body": {"x": 1}}, {"method": "GET", "path": "/ping"}]


def recording(folder, records=TWO):
    path = folder / "requests.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


def shadow(old, new, *words, env=None):
    return CliRunner().invoke(main, ["shadow", "--old", old, "--new", new, *words], env=env)


@pytest.mark.parametrize(
    ("new", "exit_code", "counts", "difference"),
    [
        (Upstream(b'{"score":0.500001,"label":"cat"}'), 0, (2, 0, 0), None),
        (Upstream(status=500), 1, (0, 2, 0), "status: 200 → 500"),
        (Upstream(b'{"label": "cat", "score": 0.6}'), 1, (0, 0, 2), "$.score: 0.5 → 0.6"),
    ],
)
def test_answers_are_compared(tmp_path, new, exit_code, counts, difference):
    # Given
    with Upstream().running() as old, new.running():
        # When
        done = shadow(old.url, new.url, "--requests", recording(tmp_path), "--json")
    # Then
    assert done.exit_code == exit_code, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [row["request"] for row in rows] == ["GET /ping", "POST /predictions/m"]
    assert tuple(sum(row[one] for row in rows) for one in ("same", "status", "body")) == counts
    assert {text.partition(": ")[2] for row in rows for text in row["differences"]} == (
        {difference} if difference else set()
    )
    # and each server was asked the same
    assert sorted(one[:2] + one[3:] for one in old.asked) == [
        ("GET", "/ping", b""),
        ("POST", "/predictions/m", b'{"x": 1}'),
    ]
    assert sorted(one[3] for one in new.asked) == sorted(one[3] for one in old.asked)


def test_table_has_latencies_and_differences_but_no_texts(tmp_path):
    with Upstream().running() as old, Upstream(b'{"label": "dog", "score": 1}').running() as new:
        done = shadow(old.url, new.url, "--requests", recording(tmp_path))
    # Then
    assert done.exit_code == 1
    assert "POST /predictions/m, request 1: $.label: 3 → 3 characters" in done.stdout
    assert "2 requests, 0 the same, 2 different, 0 missed." in done.stdout
    assert "cat" not in done.output
    assert "dog" not in done.output


def test_server_that_is_away_or_slow_is_named(tmp_path):
    slow = Upstream()
    slow.go.clear()
    words = ("--requests", recording(tmp_path), "--timeout", "0.2")
    with Upstream().running() as old, slow.running():
        late = shadow(old.url, slow.url, *words)
        away = shadow(old.url, f"http://127.0.0.1:{free_ports(1)}", *words)
    # Then
    assert (late.exit_code, away.exit_code) == (2, 2)
    assert "no new answer: none within 0.2 s" in late.stdout
    assert "nothing was compared: request" in away.stderr
    assert "no new answer: [Errno 111]" in away.stderr
    assert "2 missed" in away.stdout


def test_each_server_gets_its_own_key(tmp_path):
    env = {"FERRY_TOKEN": "new-key", "FERRY_OLD_TOKEN": "old-key"}
    records = [{"path": "/p", "headers": {"Authorization": "Bearer recorded"}}]
    with Upstream().running() as old, Upstream().running() as new:
        words = ("--requests", recording(tmp_path, records))
        assert shadow(old.url, new.url, *words, env=env).exit_code == 0
        assert shadow(old.url, new.url, *words, env={"FERRY_TOKEN": ""}).exit_code == 0
    # Then
    keys = [[one[2].get("authorization") for one in side.asked] for side in (old, new)]
    assert keys == [["Bearer old-key", "Bearer recorded"], ["Bearer new-key", "Bearer recorded"]]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--old", "http://h", "--requests", "FILE"], "give --old URL and --new URL"),
        (["--old", "http://h", "--new", "http://h"], "give --requests FILE"),
        (["--old", "h:1", "--new", "http://h", "--requests", "FILE"], "not a URL like"),
        (["--old", "http://h:x", "--new", "http://h", "--requests", "FILE"], "not a URL like"),
        (["serve", "--old", "http://h", "--new", "http://h", "--listen", "80"], "write HOST:PORT"),
        (["--old", "http://h", "serve", "--new", "http://h"], "write the options after `serve`"),
    ],
)
def test_unusable_words_are_refused(tmp_path, words, complaint):
    path = recording(tmp_path)
    done = CliRunner().invoke(main, ["shadow", *(path if one == "FILE" else one for one in words)])
    assert done.exit_code == 2
    assert complaint in done.stderr


@pytest.mark.parametrize("text", ["", '{"path": "/"}\nnonsense'])
def test_recording_without_requests_is_refused_before_any_is_sent(tmp_path, text):
    (tmp_path / "r.jsonl").write_text(text)
    with Upstream().running() as old:
        done = shadow(old.url, old.url, "--requests", str(tmp_path / "r.jsonl"))
    assert done.exit_code == 2
    assert ("line 2: this is not JSON" if text else "nothing was compared") in done.stderr
    assert old.asked == []


@pytest.mark.slow
def test_proxy_runs_until_it_is_told_to_stop_and_what_it_records_can_be_sent(tmp_path):
    # Given
    port = free_ports(1)
    address, path = f"127.0.0.1:{port}", tmp_path / "live.jsonl"
    new = Upstream(b'{"label": "cat", "score": 0.6}')
    with Upstream().running() as old, new.running():
        words = ["shadow", "serve", "--old", old.url, "--new", new.url, "--listen", address]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ferry.main", *words, "--record", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
            text=True,
        )
        try:
            assert f"listening address=http://{address}" in process.stderr.readline()
            # When
            answer = httpx.post(f"http://{address}/predictions/m", json={"x": 1})
            eventually(lambda: new.asked)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
        # Then
        assert answer.json() == {"label": "cat", "score": 0.5}
        assert process.returncode == 1
        assert "POST /predictions/m, request 1: $.score: 0.5 → 0.6" in output
        assert shadow(old.url, old.url, "--requests", str(path)).exit_code == 0
        assert [one[3] for one in old.asked] == 3 * [b'{"x":1}']
