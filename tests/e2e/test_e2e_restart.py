"""What a server makes of a model store, or a configuration, that changed while it was down."""

import pytest

from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryProcess
from tests.support import eventually

pytestmark = pytest.mark.slow

GONE = "Model not found at: gone-1.0.mar"
BROKEN = "broken-1.0.mar is not a zip (.mar) archive, or it is damaged or encrypted: "


def saying(word):
    return {"handler.py": f"def handle(data, context):\n    return [{word!r}] * len(data or [])\n"}


def listed(server):
    return [model["modelName"] for model in server.manage("GET", "models").json()["models"]]


def status_of(server, folder):
    environment = {
        "FERRY_MANAGEMENT_URL": server.management,
        "FERRY_INFERENCE_URL": server.inference,
    }
    command = FerryProcess(folder, ["status"], environment=environment)
    eventually(command.has_ended, 30)
    return command.log()


def test_server_that_starts_again_tells_what_became_of_each_archive(start, tmp_path):
    # Given four models that were registered
    server = start()
    for name in ("good", "gone", "broken", "replaced"):
        server.register(make_archive(server.store, name, saying("first")))
    server.process.stop_cleanly()

    # When their archives change, and the server starts again
    (server.store / "gone-1.0.mar").rename(tmp_path / "kept.mar")
    (server.store / "broken-1.0.mar").write_bytes(b"no zip")
    later = make_archive(server.store, "replaced", saying("second"), version="2.0")
    (server.store / later).rename(server.store / "replaced-1.0.mar")
    server = start()

    # Then it says what it restores, from where, and what is wrong
    output = server.process.log_path.read_text()
    [line] = [line for line in output.splitlines() if line.startswith("Restoring ")]
    assert line.startswith(f"Restoring broken, gone, good, replaced from {tmp_path}/logs/config/")
    place = f"Did you mean good-1.0.mar? It was looked for in {tmp_path}/store"
    assert f"not loaded: gone 1.0: {GONE}. {place}\n" in output
    assert f"not loaded: broken 1.0: {BROKEN}" in output

    # And no model is absent
    assert listed(server) == ["broken", "gone", "good", "replaced"]
    for name, error in (("gone", GONE), ("broken", BROKEN)):
        assert server.describe(name)["error"].startswith(error)
        assert server.describe(name)["workers"] == []
        assert server.predict(name).status_code == 503
    assert "error" not in server.describe("good")
    eventually(lambda: server.predict("good").text == "first", 20)
    assert server.describe("replaced")["modelVersion"] == "2.0"
    eventually(lambda: server.predict("replaced").text == "second", 20)
    assert server.http.get(f"{server.inference}/ping").json() == {"status": "Healthy"}
    shown = status_of(server, tmp_path)
    assert shown.startswith("ready\n")
    assert f"not loaded: gone 1.0: {GONE}\n" in shown
    assert f"not loaded: broken 1.0: {BROKEN}" in shown

    # When one archive is put right, and registered again
    (tmp_path / "kept.mar").rename(server.store / "gone-1.0.mar")
    server.register("gone-1.0.mar")

    # Then it is served, and the other one still waits after the next start
    assert server.predict("gone").text == "first"
    assert "error" not in server.describe("gone")
    server.process.stop_cleanly()
    make_archive(server.store, "broken", saying("first"))
    server = start()
    eventually(lambda: server.predict("broken").text == "first", 20)
    server.process.stop_cleanly()


def test_archives_that_load_models_names_in_vain_are_listed(start, tmp_path):
    # Given
    store = tmp_path / "store"
    store.mkdir()
    make_archive(store, "good", saying("first"))
    (store / "broken-1.0.mar").write_bytes(b"no zip")
    (store / "away-1.0.mar").symlink_to("/no-disk/away-1.0.mar")
    (store / "..data").mkdir()

    # When
    server = start("--models", "all")

    # Then
    assert listed(server) == ["away_1_0", "broken_1_0", "good"]
    assert server.describe("broken_1_0")["error"].startswith(BROKEN)
    assert server.describe("away_1_0")["error"].startswith(
        "Model not found at: away-1.0.mar: a link"
    )
    eventually(lambda: server.predict("good").text == "first", 20)
    server.process.stop_cleanly()


def test_config_file_is_followed_although_a_snapshot_is_restored(start, tmp_path):
    # Given a server that was configured by a file, and got another model since
    store, config = tmp_path / "store", tmp_path / "config.properties"
    store.mkdir()
    named, more = (make_archive(store, name, saying(name)) for name in ("named", "more"))
    words = 'load_models={}\nmodels={{"named": {{"1.0": {{"batchSize": {}}}}}}}\n'
    config.write_text(words.format(named, 2))
    server = start("--config", str(config))
    assert "Restoring" not in server.process.log_path.read_text()
    assert server.describe("named")["batchSize"] == 2
    server.register(more)
    server.process.stop_cleanly()

    # When the file says something else
    config.write_text(words.format(named, 4))
    server = start("--config", str(config))

    # Then that counts, the rest comes from the snapshot, and one line says so
    assert server.describe("named")["batchSize"] == 4
    assert listed(server) == ["more", "named"]
    output = server.process.log_path.read_text()
    [line] = [line for line in output.splitlines() if line.startswith("Restoring ")]
    assert line.startswith(f"Restoring more, named from {tmp_path}/logs/config/")
    server.process.stop_cleanly()

    # When no snapshot is wanted
    server = start("--config", str(config), "--no-config-snapshots")

    # Then
    assert listed(server) == ["named"]
    assert "Restoring" not in server.process.log_path.read_text()
    server.process.stop_cleanly()
