"""The `ferry` command's client side: what it sends, prints and exits with.

A small HTTP server stands in for the real one and answers with TorchServe's documents.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ferry.commands.jobs import idempotency_key, write_result
from ferry.main import main
from tests.http_server import StandIn
from tests.ports import free_ports
from tests.timing import assert_within

DESCRIPTION = {
    "modelName": "m",
    "modelVersion": "1.0",
    "modelUrl": "m.mar",
    "minWorkers": 2,
    "workers": [],
    "jobQueueStatus": {"remainingCapacity": 97, "pendingRequests": 3},
}
NOT_FOUND = {"code": 404, "type": "ModelNotFoundException", "message": "Model not found: x"}


class Server(StandIn):
    """Answers each method and path with a status and a document; the body `break` with nothing."""

    def __init__(self):
        super().__init__(self._answer)
        self.answers = {}
        self.headers = {"x-request-id": "a1"}

    def _answer(self, method, path, body):
        if body == b"break":
            return None
        status, content = self.answers.get((method, path.partition("?")[0]), (404, NOT_FOUND))
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        return status, self.headers, raw


@pytest.fixture
def server():
    with Server().running() as running:
        yield running


@pytest.fixture
def ferry(server):
    def run(*arguments, **options):
        environment = {"FERRY_MANAGEMENT_URL": server.url, "FERRY_INFERENCE_URL": server.url}
        return CliRunner().invoke(main, arguments, env=environment, **options)

    return run


@pytest.mark.parametrize(
    ("scheme", "is_there", "said"),
    [
        ("https", True, "no TLS at {url} (WRONG_VERSION_NUMBER): is it http://?"),
        ("http", False, "nothing answers at {url} ([Errno 111] Connection refused): is the"),
        ("", True, "not a URL like http://host:port: {url}"),
    ],
)
def test_command_says_why_no_server_answers(server, ferry, scheme, is_there, said):
    port = server.http.server_port if is_there else free_ports(1)
    url = f"{scheme}://127.0.0.1:{port}".removeprefix("://")
    result = ferry("models", "list", "--management-url", url)
    assert result.exit_code == 1
    assert said.format(url=url) in result.stderr


PAGE = b"""<!DOCTYPE HTML>
<html>
  <head><title>Error response</title></head>
  <body><p>Error code: 404</p></body>
</html>
"""


@pytest.mark.parametrize("headers", [{}, {"x-request-id": "of a proxy"}])
def test_answer_that_is_no_json_is_told_in_one_line(server, ferry, headers):
    server.headers = headers
    server.answers["GET", "/models"] = (200, PAGE)
    said = f'{server.url} does not answer as a ferry server does: a page, "Error response"'
    assert ferry("models", "list").stderr == f"Error: {said} (HTTP 200)\n"


@pytest.mark.parametrize(
    ("answer", "quoted"),
    [
        ((404, PAGE), 'a page, "Error response"'),
        ((200, {"models": 1}), '{"models": 1}'),
        ((404, {"detail": "Not\n Found"}), '{"detail": "Not\\n Found"}'),
        ((200, b"pong " * 100), f"{'pong ' * 20}..."),
    ],
)
def test_foreign_server_is_told_in_one_line(server, ferry, answer, quoted):
    # Given
    server.headers = {}
    server.answers["GET", "/models"] = answer
    # When
    result = ferry("models", "list")
    # Then
    said = f"{server.url} does not answer as a ferry server does: {quoted}"
    assert (result.exit_code, result.stderr) == (1, f"Error: {said} (HTTP {answer[0]})\n")


@pytest.mark.parametrize("command", ["predict m FILE", "jobs submit m FILE", "jobs result 1"])
def test_foreign_server_is_told_to_those_who_send_files(server, ferry, tmp_path, command):
    # Given
    (tmp_path / "f").write_text("hi")
    server.headers = {}
    server.answer = lambda *_: (404, {}, PAGE)
    # When
    result = ferry(*command.replace("FILE", str(tmp_path / "f")).split())
    # Then
    said = f'{server.url} does not answer as a ferry server does: a page, "Error response"'
    assert (result.exit_code, result.stderr) == (1, f"Error: {said} (HTTP 404)\n")


def test_answer_404_of_a_handler_is_told_as_it_is(server, ferry, tmp_path):
    (tmp_path / "f").write_text("hi")
    server.answers["POST", "/predictions/m"] = (404, b"no such row")
    assert "no such row (HTTP 404)" in ferry("predict", "m", str(tmp_path / "f")).stderr


def test_error_that_a_handler_made_is_told_as_it_is(server, ferry, tmp_path):
    # Given
    (tmp_path / "f").write_text("hi")
    server.answers["POST", "/predictions/m"] = (422, b"two\nlines")
    # When
    result = ferry("predict", "m", str(tmp_path / "f"))
    # Then
    assert "two\nlines (HTTP 422)" in result.stderr
    assert [path for _, path, *_ in server.asked] == ["/predictions/m"]


@pytest.mark.parametrize(
    ("token", "hint"),
    [("", "is not set"), ("secret\n", "has another key, or an expired one")],
)
def test_command_sends_the_token_of_the_environment_and_says_why_it_is_refused(
    server, ferry, monkeypatch, token, hint
):
    # Given
    monkeypatch.setenv("FERRY_TOKEN", token)
    refusal = {"code": 400, "type": "InvalidKeyException", "message": "No"}
    server.answers["GET", "/models"] = (400, refusal)
    # When
    result = ferry("models", "list")
    # Then
    assert result.stderr == f"Error: No: FERRY_TOKEN {hint} (HTTP 400)\n"
    [(_, _, headers, _)] = server.asked
    assert headers.get("authorization") == ("Bearer secret" if token else None)


@pytest.mark.parametrize("token", ["schlüssel", "a\nb"])
def test_token_that_can_be_none_is_refused_and_not_shown(ferry, monkeypatch, token):
    monkeypatch.setenv("FERRY_TOKEN", token)
    complaint = "Error: FERRY_TOKEN has characters that no token has\n"
    assert ferry("models", "list").stderr == complaint


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "register m.mar --batch-size 8 --initial-workers 0",
            "POST /models?url=m.mar&synchronous=true&defaults=serving"
            "&batch_size=8&initial_workers=0",
        ),
        (
            "register m.mar --no-wait",
            "POST /models?url=m.mar&synchronous=false&defaults=serving",
        ),
        ("scale m --min-worker 0", "PUT /models/m?synchronous=true&min_worker=0"),
        (
            "scale m --min-worker 1 --max-worker 2 --version 2.0",
            "PUT /models/m/2.0?synchronous=true&min_worker=1&max_worker=2",
        ),
        ("unregister m", "DELETE /models/m"),
        ("unregister m --version 2.0", "DELETE /models/m/2.0"),
        ("set-default m 2.0", "PUT /models/m/2.0/set-default"),
        ("unregister a/b?", "DELETE /models/a%2Fb%3F"),
    ],
)
def test_models_commands_ask_the_management_api(server, ferry, arguments, expected):
    # Given
    method, _, path = expected.partition(" ")
    server.answers[method, path.partition("?")[0]] = (200, {"status": "done"})
    # When
    result = ferry("models", *arguments.split())
    # Then
    assert result.stdout == "done\n"
    assert " ".join(server.asked[0][:2]) == expected


def test_list_follows_the_pages(server, ferry):
    # Given a server that always says there is more, until a page is empty
    pages = iter([["a", "b"], ["c"], []])

    def answer(*_):
        models = [{"modelName": name, "modelUrl": f"{name}.mar"} for name in next(pages)]
        page = {"nextPageToken": "7", "models": models}
        return 200, server.headers, json.dumps(page).encode()

    server.answer = answer
    # When
    result = ferry("models", "list", "--json")
    # Then
    assert [record["modelName"] for record in json.loads(result.stdout)] == ["a", "b", "c"]
    assert [path for _, path, *_ in server.asked] == [
        f"/models?limit=100&next_page_token={token}" for token in (0, 7, 7)
    ]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"status": "No ready worker: m"}, "No ready worker: m"),
        ({"code": 400, "message": "Token failed"}, "Token failed"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (["status"], '["status"]'),
        (b"", "Service Unavailable"),
    ],
)
def test_status_says_why_a_server_is_not_ready_and_what_did_not_load(server, ferry, answer, reason):
    # Given
    failed = {"node": "n1", "status": "UNLOADING", "error": "No [GPU]"}
    version = DESCRIPTION | {"workers": [failed] * 2}
    gone = DESCRIPTION | {"modelVersion": "2.0", "error": "Not found"}
    server.answers |= {
        ("GET", "/readyz"): (503, answer),
        ("GET", "/nodes"): (200, [{"node": "n1", "host": "box"}]),
        ("GET", "/models"): (200, {"models": [{"modelName": "m", "modelUrl": "m.mar"}]}),
        ("GET", "/models/m/all"): (200, [version, gone]),
    }
    # When
    lines = ferry("status").stdout.splitlines()
    record = json.loads(ferry("status", "--json").stdout)
    # Then
    assert (lines[0], record["ready"], record["reason"]) == (reason, False, reason)
    assert (record["nodes"], record["models"][0]["workers"]) == ({"n1": 2}, {"UNLOADING": 2})
    assert record["models"][0]["waiting"] == 3
    assert lines[-2:] == ["not loaded: m 1.0: No [GPU]", "not loaded: m 2.0: Not found"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"plain words", "plain words\n"),
        (b"\xff\xfe\x00", "3 bytes of data\n"),
        ({"digit": 3, "parts": [1]}, '{\n  "digit": 3,\n  "parts": [\n    1\n  ]\n}\n'),
        ({}, "{}\n"),
    ],
)
def test_predict_prints_any_answer_as_it_is(server, ferry, answer, expected):
    # Given
    server.answers["POST", "/predictions/m"] = (200, answer)
    # When
    result = ferry("predict", "m", "-", input=b"body")
    # Then
    assert result.stdout == expected
    assert server.asked[0][3] == b"body"


def test_predict_sends_files_as_they_are_and_prints_errors_in_their_place(server, ferry, tmp_path):
    # Given
    server.answers["POST", "/predictions/m/2.0"] = (200, "fine")
    contents = {"a.png": b"\xff\xd8", "b": b"break", "c.json": b"\xff{}"}
    names = [str(tmp_path / name) for name in contents]
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    # When
    result = ferry("predict", "m", "--version", "2.0", *names)
    # Then
    assert result.exit_code == 1
    assert result.stdout == f"{names[0]}: fine\n{names[2]}: fine\n"
    assert f"{names[1]}: the connection to {server.url} broke" in result.stderr
    kinds = {body: headers.get("content-type") for *_, headers, body in server.asked}
    assert kinds == {b"\xff\xd8": None, b"break": None, b"\xff{}": "application/json"}
    # When there is no other answer
    result = ferry("predict", "m", names[1])
    # Then
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"the connection to {server.url} broke" in result.stderr
    # When the model is not there
    result = ferry("predict", "x", "--json", names[0])
    # Then
    assert result.exit_code == 1
    assert json.loads(result.stdout) == [
        {"file": names[0], "status": 404, "error": "Model not found: x"}
    ]


def test_a_job_is_known_by_model_version_type_name_and_content():
    # Given
    one = {"model": "m", "options": {"version": "1"}, "file_name": "a", "content": b"x"}
    others = (
        *({"model": "n"}, {"options": {}}, {"file_name": "b"}, {"content": b"y"}),
        *({"options": {"version": "2"}}, {"options": {"version": "1", "content_type": "text/x"}}),
    )
    # When
    keys = {idempotency_key(**{**one, **other}) for other in others}
    # Then
    assert len(keys | {idempotency_key(**one), idempotency_key(**one)}) == 7
    assert all(key.startswith("ferry-") and len(key) <= 255 for key in keys)


def test_result_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "result").mkdir()
    with pytest.raises(IsADirectoryError):
        write_result(tmp_path / "result", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


@contextlib.contextmanager
def ferry_process(*words: str, **options) -> Iterator["subprocess.Popen[str]"]:
    """Runs `ferry` in a process of its own, with addresses that are free."""
    port = free_ports(3)
    roles = ("inference", "management", "metrics")
    addresses = [f"--{role}-address=http://127.0.0.1:{port + n}" for n, role in enumerate(roles)]
    with subprocess.Popen(
        [sys.executable, "-m", "ferry.main", words[0], *addresses, *words[1:]],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stderr=subprocess.PIPE,
        text=True,
        **options,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.fixture
def silent_redis():
    """A port at which connections are taken, and never a word is said."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("is_silent", [True, False])
def test_up_says_in_one_line_that_redis_is_away(silent_redis, is_silent):
    # Given
    address = silent_redis if is_silent else f"127.0.0.1:{free_ports(1)}"
    words = ["up", "--port-base", str(free_ports(3)), "--redis-url", f"redis://:secret@{address}"]
    # When
    started = time.monotonic()
    result = CliRunner().invoke(main, words)
    # Then
    assert time.monotonic() - started <= 5
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith(f"Error: no Redis can be used at redis://{address}: ")
    assert "secret" not in line


@pytest.mark.parametrize("command", ["ingress", "node"])
def test_part_says_in_one_line_which_redis_it_waits_for(command, silent_redis):
    started_s = time.monotonic()
    with ferry_process(command, "--redis-url", f"redis://:secret@{silent_redis}") as process:
        line = process.stderr.readline()
        assert_within(time.monotonic() - started_s, 5)
        assert process.poll() is None
    assert f"redis=redis://{silent_redis}" in line
    assert "this waits for it" in line


def test_node_refuses_a_model_store_that_is_no_folder():
    words = ["node", "--redis-url", "redis://127.0.0.1:1", "--model-store", "missing"]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.stderr) == (
        1,
        "Error: the model store is not a folder: missing\n",
    )


def test_content_type_that_no_header_may_have_is_refused():
    result = CliRunner().invoke(main, ["predict", "m", "-", "--content-type", "ä"])
    assert result.exit_code == 2
    assert "has characters that no header may have" in result.stderr


@pytest.mark.parametrize("duration", ["nan", "inf", "0"])
def test_bench_refuses_a_duration_that_is_none(duration):
    result = CliRunner().invoke(main, ["bench", "m.mar", "--duration", duration])
    assert result.exit_code == 2
    assert "Invalid value for '--duration'" in result.stderr


def test_up_says_of_each_key_without_effect_why(tmp_path):
    # Given a config that is good but for three keys, and a model store that stops the command
    config = tmp_path / "config[1].properties"
    keys = ("vmargs=-Xmx4g", "job_queue_sise=7", "of_tomorrow=x", "model_store=/missing")
    config.write_text("\n".join(keys))
    # When it is found by TorchServe's variable
    result = CliRunner().invoke(main, ["up"], env={"TS_CONFIG_FILE": str(config)})
    # Then
    assert result.stderr.splitlines() == [
        f"warning: {config}: job_queue_sise is unknown; did you mean job_queue_size?",
        f"warning: {config}: of_tomorrow is unknown",
        f"warning: {config}: vmargs has no effect here: there is no Java virtual machine",
        "Error: the model store is not a folder: /missing",
    ]


def test_variable_that_is_nearly_a_settings_is_named(monkeypatch):
    # Given
    monkeypatch.setenv("FERRY_QUEUE_TIMOUT_S", "5")
    for name in ("FERRY_INFERENCE_TOKEN", "FERRY_METRICS_URL", "FERRY_PORT_8080_TCP"):
        monkeypatch.setenv(name, "of a client's, or of Kubernetes")
    # When
    result = CliRunner().invoke(main, ["up", "--model-store", "/missing"])
    # Then
    assert result.stderr.splitlines() == [
        "warning: FERRY_QUEUE_TIMOUT_S is not a setting; did you mean FERRY_QUEUE_TIMEOUT_S?",
        "Error: the model store is not a folder: /missing",
    ]


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("--metrics-config=/missing", "cannot read /missing: No such file or directory"),
        ("--inference-address=http://127.0.0.1:99999", "not an address like http://host:port"),
    ],
)
def test_up_ends_with_2_whichever_part_finds_that_a_setting_cannot_be_used(
    tmp_path, setting, complaint
):
    words = ("up", "--no-config-snapshots", setting)
    with ferry_process(*words, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        printed = "".join(process.communicate(timeout=60))
    assert complaint in printed
    assert process.returncode == 2
