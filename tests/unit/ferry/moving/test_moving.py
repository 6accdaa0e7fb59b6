"""What `ferry doctor` says of a TorchServe that is to move here.

The configurations are TorchServe's own examples; the answers of its API were recorded from 0.12.
"""

import json
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from batching.settings.settings import BY_KEY
from batching.settings.torchserve_keys import IGNORED, UNDERSTOOD
from ferry.main import main
from ferry.moving.configuration import key_row
from ferry.moving.effects import Effect, version_rows
from tests.configurations import MISTAKES, on_this_machine
from tests.http_server import serving
from tests.ports import free_ports

HERE = Path(__file__).parent
CONFIGS = HERE / "configs"
RECORDED = json.loads((HERE / "torchserve-0.12.json").read_text())["answers"]


def doctor(target, **variables):
    done = CliRunner().invoke(main, ["doctor", str(target), "--json"], env=variables)
    if done.exit_code == 2:
        return 2, done.stderr
    record = json.loads(done.stdout)
    assert done.exit_code == bool(record["mustChange"])
    return done.exit_code, [(one["part"], one["effect"], one["text"]) for one in record["rows"]]


def changes(rows):
    return {(part, text) for part, effect, text in rows if effect == "must change"}


# --- config.properties


def starts(rows):
    """What is said of each command's start; of both, under `start`."""
    commands = ("start", "ferry torchserve --ts-config", "ferry up --config")
    return {(part, effect) for part, effect, _ in rows if part in commands}


@pytest.fixture
def example(tmp_path):
    """Copies one of TorchServe's examples, with a model store and ports that there are."""

    def make(name):
        (tmp_path / "store").mkdir(exist_ok=True)
        path = tmp_path / f"{name}.properties"
        path.write_text(on_this_machine((CONFIGS / path.name).read_text(), tmp_path / "store"))
        return path

    return make


@pytest.mark.parametrize("name", ["docker", "aks", "benchmarks"])
def test_open_management_starts_as_torchserve_and_not_as_up(name, example):
    exit_code, rows = doctor(example(name))
    [(part, text)] = changes(rows)
    assert (exit_code, part) == (1, "ferry up --config")
    assert "is reachable from other machines" in text
    is_given = name != "benchmarks"  # its model store comes from the command line
    assert ("ferry torchserve --ts-config", "same" if is_given else "note") in starts(rows)


@pytest.mark.parametrize("name", ["video", "nmt"])
def test_torchserves_examples_start_as_they_are(name, example):
    exit_code, rows = doctor(example(name))
    assert (exit_code, changes(rows)) == (0, set())
    assert starts(rows) == {("ferry torchserve --ts-config", "note"), ("ferry up --config", "same")}


@pytest.mark.parametrize("name", ["kserve", "stateful"])
def test_clients_of_grpc_must_change(name, example):
    exit_code, rows = doctor(example(name))
    assert exit_code == 1
    assert {part for part, _ in changes(rows)} == {"grpc_inference_port", "grpc_management_port"}
    assert all("use HTTP" in text for _, text in changes(rows))
    assert ("ferry up --config" if name == "stateful" else "start", "same") in starts(rows)


def test_model_store_of_another_machine_is_named():
    _, rows = doctor(CONFIGS / "docker.properties")
    words = "the model store is not a folder: /home/model-server/model-store"
    assert ("start", words) in changes(rows)


def test_start_that_fails_only_now_is_a_note(tmp_path):
    # Given
    port = free_ports(3)
    (tmp_path / "c.properties").write_text(
        f"model_store={tmp_path}\ninference_address=http://127.0.0.1:{port}\n"
        f"redis_url=redis://:secret@127.0.0.1:{free_ports(1)}\n"
    )
    with socket.create_server(("127.0.0.1", port)):
        # When
        exit_code, rows = doctor(tmp_path / "c.properties")
    # Then
    assert (exit_code, starts(rows)) == (0, {("start", "note")})
    texts = " ".join(text for part, _, text in rows if part == "start")
    assert f"not now: http://127.0.0.1:{port} is in use" in texts
    assert "not now: no Redis can be used at redis://127.0.0.1:" in texts
    assert "secret" not in texts


def test_each_key_of_an_example_has_its_row():
    _, rows = doctor(CONFIGS / "kserve.properties")
    effects = {}
    for part, effect, _ in rows:
        effects.setdefault(part, []).append(effect)
    assert effects["job_queue_size"] == ["same"]
    assert effects["load_models"] == ["better"]
    assert effects["number_of_netty_threads"] == effects["NUM_WORKERS"] == ["note"]
    # and each model that the snapshot restores
    assert effects["model mnist 1.0"] == ["same", "better", "better"]
    assert (
        "model mnist 1.0",
        "same",
        "minWorkers 1, maxWorkers 5, batchSize 5, maxBatchDelay 200, responseTimeout 60",
    ) in rows


def test_models_of_the_configuration_have_rows():
    _, rows = doctor(CONFIGS / "video.properties")
    [text] = [
        text for part, effect, text in rows if (part, effect) == ("model resnet-18 1.0", "same")
    ]
    assert (
        text == "minWorkers 1, maxWorkers 4, batchSize 4, maxBatchDelay 5000, responseTimeout 120"
    )


def test_what_must_change_says_how():
    exit_code, rows = doctor(CONFIGS / "keystore.properties")
    assert exit_code == 1
    replaced = "TLS takes certificate_file and private_key_file"
    assert changes(rows) == {
        *((key, replaced) for key in ("keystore", "keystore_pass", "keystore_type")),
        (
            "load_models",
            "https://models.example.com/b.mar is not in allowed_urls: name it there, or copy it "
            "into the model store",
        ),
        ("start", "https:// needs certificate_file and private_key_file"),
    }
    assert starts(rows) == {("start", "must change")}
    assert (
        "job_queue_sizes",
        "note",
        "job_queue_sizes is unknown; did you mean job_queue_size?",
    ) in rows


@pytest.mark.parametrize(("lines", "part", "words"), MISTAKES)
def test_configuration_that_would_not_start_says_why(tmp_path, lines, part, words):
    (tmp_path / "config.properties").write_text(on_this_machine(lines, tmp_path))
    exit_code, rows = doctor(tmp_path / "config.properties")
    assert exit_code == 1
    [(found, text)] = changes(rows)
    assert found == part
    assert words in text


def test_variables_of_this_shell_do_not_count(tmp_path):
    (tmp_path / "c.properties").write_text("enable_envvars_config=true\nmax_request_size=$$SIZE$$")
    variables = {"TS_JOB_QUEUE_SIZE": "x", "FERRY_JOB_QUEUE_SIZE": "x", "SIZE": "5"}
    assert doctor(tmp_path / "c.properties", **variables)[0] == 0


def test_every_key_that_the_server_knows_has_a_row_of_its_own_words():
    for key in UNDERSTOOD:
        assert key_row(key).effect in (Effect.SAME, Effect.BETTER)
    for key, reason in IGNORED.items():
        assert reason in key_row(key).text


# --- models


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"continuousBatching": True}, "continuousBatching: True has no counterpart"),
        ({"stateful": True}, "sequenceBatching: True has no counterpart"),
        ({"parallelType": "pp"}, "parallelType: pp has no counterpart"),
        ({"runtime": "LSP"}, "Invalid RuntimeType value: LSP"),
        ({"minWorkers": 5000, "maxWorkers": 5000}, "A node runs at most 1024 workers"),
    ],
)
def test_model_that_cannot_be_served_must_change(settings, reason):
    texts = [
        row.text
        for row in version_rows("m", "1.0", settings, "m.mar")
        if row.effect == Effect.CHANGE
    ]
    assert len(texts) == 1
    assert texts[0].startswith(reason)


# --- compose files


def test_compose_file_has_rows_for_each_service_of_torchserve():
    exit_code, rows = doctor(CONFIGS / "compose.yml")
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


def test_variables_count_only_where_the_file_says_so(tmp_path):
    text = (
        "services: {t: {image: torchserve, environment: [TS_JOB_QUEUE_SIZE=x, TS_NUMBER_OF_GPU]}}"
    )
    _, rows = compose(tmp_path, text)
    [found] = [text for part, _, text in rows if part == "t: TS_JOB_QUEUE_SIZE"]
    assert found == "counts only if the file says enable_envvars_config=true, as in TorchServe"


@pytest.mark.parametrize("value", ["x", "${QUEUE}"])
def test_value_of_a_variable_is_checked_where_it_is_known(tmp_path, value):
    (tmp_path / "c.properties").write_text("enable_envvars_config=true")
    service = {
        "image": "pytorch/torchserve",
        "environment": {"TS_JOB_QUEUE_SIZE": value},
        "volumes": ["./c.properties:/home/model-server/config.properties:ro"],
    }
    _, rows = compose(tmp_path, json.dumps({"services": {"t": service}}))
    parts = {part for part, _ in changes(rows)}
    assert parts == ({"t: image", "t: start"} if value == "x" else {"t: image"})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "this is no compose file"),
        ("services: [torchserve]", "this is no compose file"),
        (
            "services: {web: {image: nginx}, other: 1}",
            "no service has torchserve in its image or command (web, other)",
        ),
        ("services: {", "cannot read"),
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


class Recorded(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(self.server.answers.get(self.path.partition("&")[0], {"code": 404}))
        status = 200 if self.path.partition("&")[0] in self.server.answers else 404
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args):
        pass


def served(answers):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorded)
    server.answers = answers
    return serving(server)


def test_running_torchserve_has_rows_for_its_api_and_each_version():
    with served(RECORDED) as url:
        exit_code, rows = doctor(url)
    # Then
    assert exit_code == 1
    assert ("server", "same", "TorchServe 0.12.0; this server is held against 0.12") in rows
    assert ("model probe 1.0", "same") in {row[:2] for row in rows}
    assert ("model probe 2.0", "same") in {row[:2] for row in rows}
    assert ("api", "note", "POST /models: s3_sse_kms has no effect") in rows
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
    with served(answers) as url:
        _, rows = doctor(url)
    # Then its archive comes from elsewhere, and what may be a secret is not told
    [(part, text)] = changes(rows)
    assert (part, text.partition(":")[0]) == ("model one 1.0", "https")
    assert "allowed_urls" in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ({}, "does not answer as a ferry server does"),
        ({"/api-description": []}, "no answer of TorchServe's management API"),
        ({"/api-description": {}, "/models?limit=100": {"models": 1}}, "no answer of TorchServe's"),
        ({"/api-description": {"paths": {"/": 1}}}, "no answer of TorchServe's"),
    ],
)
def test_other_servers_are_refused(answers, complaint):
    with served(answers) as url:
        exit_code, error = doctor(url)
    assert exit_code == 2
    assert complaint in error


def test_server_that_is_away_and_a_file_that_is_missing_are_named(tmp_path):
    port = free_ports(1)
    for target, complaint in (
        (f"http://127.0.0.1:{port}", f"nothing answers at http://127.0.0.1:{port}"),
        (tmp_path / "none.properties", f"there is no {tmp_path}/none.properties"),
    ):
        exit_code, error = doctor(target)
        assert exit_code == 2
        assert complaint in error


def test_table_is_for_people(example):
    words = ["doctor", str(example("docker"))]
    done = CliRunner().invoke(main, words, env={"COLUMNS": "300"})
    assert done.exit_code == 1
    assert "docker.properties: 1 of 9 rows must change." in done.stdout
    assert BY_KEY["job_queue_size"].doc in done.stdout
