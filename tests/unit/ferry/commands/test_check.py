"""What `ferry check` says of configurations: TorchServe's own examples, mistakes, models."""

import json
import socket

import pytest
from click.testing import CliRunner

from batching.settings.loading import IGNORED, UNDERSTOOD
from ferry.commands.check import key_row
from ferry.main import main
from tests.configurations import EXAMPLES, MISTAKES, on_this_machine
from tests.ports import free_ports


def check(path, *words):
    done = CliRunner().invoke(main, ["check", str(path), *words])
    assert done.exit_code == 0, done.output
    return [tuple(row.values()) for row in json.loads(done.stdout)["rows"]]


def changes(rows):
    return {(part, text) for part, effect, text in rows if effect == "must change"}


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
        path.write_text(on_this_machine((EXAMPLES / path.name).read_text(), tmp_path / "store"))
        return path

    return make


@pytest.mark.parametrize("name", ["docker", "aks", "benchmarks"])
def test_open_management_starts_as_torchserve_and_not_as_up(name, example):
    rows = check(example(name))
    [(part, text)] = changes(rows)
    assert part == "ferry up --config"
    assert "is reachable from other machines" in text
    is_given = name != "benchmarks"  # its model store comes from the command line
    assert ("ferry torchserve --ts-config", "same" if is_given else "note") in starts(rows)


@pytest.mark.parametrize("name", ["video", "nmt"])
def test_torchserves_examples_start_as_they_are(name, example):
    rows = check(example(name))
    assert changes(rows) == set()
    assert starts(rows) == {("ferry torchserve --ts-config", "note"), ("ferry up --config", "same")}


@pytest.mark.parametrize("name", ["kserve", "stateful"])
def test_clients_of_grpc_must_change(name, example):
    rows = check(example(name))
    assert {part for part, _ in changes(rows)} == {"grpc_inference_port", "grpc_management_port"}
    assert all("use HTTP" in text for _, text in changes(rows))
    assert ("ferry up --config" if name == "stateful" else "start", "same") in starts(rows)


def test_start_that_fails_only_now_is_a_note(tmp_path):
    # Given
    port = free_ports(3)
    (tmp_path / "c.properties").write_text(
        f"model_store={tmp_path}\ninference_address=http://127.0.0.1:{port}\n"
        f"redis_url=redis://:secret@127.0.0.1:{free_ports(1)}\n"
    )
    with socket.create_server(("127.0.0.1", port)):
        # When
        rows = check(tmp_path / "c.properties")
    # Then
    assert starts(rows) == {("start", "note")}
    texts = " ".join(text for part, _, text in rows if part == "start")
    assert f"not now: http://127.0.0.1:{port} is in use" in texts
    assert "not now: no Redis can be used at redis://127.0.0.1:" in texts
    assert "secret" not in texts


def test_what_must_change_says_how():
    rows = check(EXAMPLES / "keystore.properties")
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
    rows = check(tmp_path / "config.properties")
    [(found, text)] = changes(rows)
    assert found == part
    assert words in text


def test_every_key_that_the_server_knows_has_a_row_of_its_own_words():
    for key in UNDERSTOOD:
        assert key_row(key).effect in ("same", "better")
    for key, reason in IGNORED.items():
        assert reason in key_row(key).text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"continuousBatching": True}, "continuousBatching: True has no counterpart"),
        ({"sequenceBatching": True}, "sequenceBatching: True has no counterpart"),
        ({"parallelType": "pp"}, "parallelType: pp has no counterpart"),
        ({"runtime": "LSP"}, "Invalid RuntimeType value: LSP"),
        ({"minWorkers": 5000, "maxWorkers": 5000}, "A node runs at most 1024 workers"),
    ],
)
def test_model_that_cannot_be_served_must_change(words, reason, tmp_path):
    path = tmp_path / "c.properties"
    path.write_text(f"models={json.dumps({'m': {'1.0': words}})}\n")
    [(part, text)] = changes(check(path, "--container", "{}"))
    assert part == "model m 1.0"
    assert text.startswith(reason)


def test_variables_of_a_container_count_where_the_file_says_so_and_they_are_known(tmp_path):
    path = tmp_path / "c.properties"
    path.write_text("enable_envvars_config=true")
    for value, expected in (("x", {"start"}), (None, set())):
        rows = check(path, "--container", json.dumps({"TS_JOB_QUEUE_SIZE": value}))
        assert {part for part, _ in changes(rows)} == expected
        assert ("TS_JOB_QUEUE_SIZE", "same") in {row[:2] for row in rows}
    path.write_text("")
    variables = json.dumps({"TS_JOB_QUEUE_SIZE": "x", "TS_OTHER": "1"})
    rows = {row[0]: row[2] for row in check(path, "--container", variables)}
    assert rows["TS_JOB_QUEUE_SIZE"].startswith("counts only if the file says enable_envvars")
    assert rows["TS_OTHER"] == "is no variable of TorchServe's, and has no effect"


def test_file_that_cannot_be_read_is_named(tmp_path):
    done = CliRunner().invoke(main, ["check", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert f"Error: cannot read {tmp_path}/none" in done.stderr
