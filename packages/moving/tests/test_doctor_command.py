"""What `ferry doctor` says of a TorchServe that is to move here; its API's answers are 0.12's."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ferry.main import main
from tests.configurations import EXAMPLES
from tests.http_server import StandIn

RECORDED = json.loads((Path(__file__).parent / "torchserve-0.12.json").read_text())["answers"]


def doctor(target):
    done = CliRunner().invoke(main, ["doctor", str(target), "--json"])
    if done.exit_code == 2:
        return 2, done.stderr
    record = json.loads(done.stdout)
    assert done.exit_code == bool(record["mustChange"])
    return done.exit_code, [(one["part"], one["effect"], one["text"]) for one in record["rows"]]


def changes(rows):
    return {(part, text) for part, effect, text in rows if effect == "must change"}


# --- compose files


def test_compose_file_has_rows_for_each_service_of_torchserve():
    exit_code, rows = doctor(EXAMPLES / "compose.yml")
    found = {(part, effect) for part, effect, _ in rows}
    assert exit_code == 1
    assert {part.partition(":")[0] for part, _ in found} == {"torchserve", "scripted", "plain"}
    assert {part for part, _ in changes(rows)} == {
        *(f"{name}: image" for name in ("torchserve", "scripted", "plain")),
        "torchserve: ports",
        "torchserve: grpc_inference_port",
        "torchserve: grpc_management_port",
        "scripted: --lsp",
    }
    assert {
        ("torchserve: --models", "same"),
        ("torchserve: --workflow-store", "note"),
        ("torchserve: TS_JOB_QUEUE_SIZE", "same"),
        ("torchserve: TS_NUMBER_OF_NETTY_THREADS", "note"),
        ("torchserve: TS_NUMBER_OF_ANYTHING", "note"),
        ("torchserve: model mnist 1.0", "same"),  # of the file that is mounted
        ("scripted: --foreground", "same"),
        ("scripted: config", "note"),
        ("plain: command", "same"),
    } <= found
    [grpc] = [text for part, text in changes(rows) if part == "torchserve: ports"]
    assert grpc.startswith("7070: there is no gRPC")


def compose(folder, text):
    path = folder / "docker-compose.yaml"
    path.write_text(text)
    return doctor(path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("services: [torchserve]", "this is no compose file"),
        (
            "services: {web: {image: nginx}, other: 1}",
            "no service has torchserve in its image or command (web, other)",
        ),
        ("services: !!python/object/apply:os.system [id]", "cannot read"),
        ("a: \0", "cannot read"),
    ],
)
def test_other_yaml_is_refused(tmp_path, text, complaint):
    exit_code, error = compose(tmp_path, text)
    assert exit_code == 2
    assert complaint in error


def test_values_of_other_kinds_are_passed_over(tmp_path):
    # Given lists and objects where texts belong, some of which go in circles
    text = """
services:
  t: &t
    image: torchserve
    command: [*t, {a: b}, torchserve]
    environment: [*t]
    ports: [*t, [1], null, 8080]
    volumes: [*t, {source: *t}, 5]
  u: {image: *t, entrypoint: torchserve, environment: 5, ports: 8080, volumes: x}
"""
    # Then
    assert compose(tmp_path, text)[0] == 1


# --- a running server


def served(answers):
    def answer(_method, path, _body):
        key = path.partition("&")[0]
        return 200 if key in answers else 404, {}, json.dumps(answers.get(key)).encode()

    return StandIn(answer).running()


def test_running_torchserve_has_rows_for_its_api_and_each_version():
    with served(RECORDED) as server:
        exit_code, rows = doctor(server.url)
    # Then
    assert exit_code == 1
    assert ("server", "same", "TorchServe 0.12.0; this server was compared with 0.12") in rows
    assert ("model probe 1.0", "same") in {row[:2] for row in rows}
    assert ("model probe 2.0", "same") in {row[:2] for row in rows}
    assert {(part, text.partition(":")[0]) for part, text in changes(rows)} == {
        ("model remembering 1.0", "sequenceBatching"),
        ("model spread 1.0", "parallelType"),
        ("model talking 1.0", "continuousBatching"),
    }
    assert ("model own 1.0", "note") in {row[:2] for row in rows}  # useVenv


def test_models_are_read_page_by_page():
    one = {"modelName": "one", "modelUrl": "https://models.example.com/one.mar?key=secret"}
    answers = {
        "/api-description": RECORDED["/api-description"],
        "/models?limit=100": {"models": [one]},
        "/models/one/all": [{**one, "modelVersion": "1.0"}],
    }
    with served(answers) as server:
        _, rows = doctor(server.url)
    # Then its archive comes from elsewhere, and what may be a secret is not told
    [(part, text)] = changes(rows)
    assert (part, text.partition(":")[0]) == ("model one 1.0", "https")
    assert "allowed_urls" in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ({}, "Is this the management API? TorchServe has it on port 8081"),
        ({"/api-description": []}, "no answer of TorchServe's management API"),
        (
            {"/api-description": {"info": {}}, "/models?limit=100": {"models": 1}},
            "no answer of TorchServe's",
        ),
    ],
)
def test_other_servers_are_refused(answers, complaint):
    with served(answers) as server:
        exit_code, error = doctor(server.url)
    assert exit_code == 2
    assert complaint in error
    assert f"nothing answers at {server.url}" in doctor(server.url)[1]


def test_configuration_is_judged_by_the_server_and_not_by_this_shell(tmp_path, monkeypatch):
    # Given
    for variable in ("TS_JOB_QUEUE_SIZE", "FERRY_JOB_QUEUE_SIZE"):
        monkeypatch.setenv(variable, "x")
    monkeypatch.setenv("SIZE", "5")
    path = tmp_path / "c.properties"
    path.write_text("enable_envvars_config=true\nmax_request_size=$$SIZE$$\nkeystore=a")
    # When
    exit_code, rows = doctor(path)
    done = CliRunner().invoke(main, ["doctor", str(path)], env={"COLUMNS": "300"})
    # Then
    assert (exit_code, done.exit_code) == (1, 1)
    assert changes(rows) == {("keystore", "TLS takes certificate_file and private_key_file")}
    assert f"c.properties: 1 of {len(rows)} rows must change." in done.stdout
    path.write_bytes(b"\0")
    assert doctor(path) == (2, f"Error: cannot read {path}: it is no text\n")
