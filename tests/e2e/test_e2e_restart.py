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
