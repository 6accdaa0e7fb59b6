"""The image that takes the place of TorchServe's: what it starts, as whom, and how it ends."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.compose.image import IMAGE, Image
from tests.compose.stack import ROOT, engine_missing
from tests.compose.test_compose_images import BASE
from tests.e2e.test_readme import blocks
from tests.support import eventually

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

# Without torch.
MAX_BYTES = 100 * 1000**2
START_S = 60
STOP_S = 10
PHOTO = ROOT / "examples" / "kitten.jpg"
STORE = "/home/model-server/model-store"
CONFINED = (
    *("--read-only", "--tmpfs", "/tmp:exec", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges", "--env", "LOG_LOCATION=/tmp/logs"),
)


def documented(document: str) -> list[str]:
    return [block.text for block in blocks(document) if "image" in block.kinds]


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """Built as docs/container.md says."""
    if reason := engine_missing():
        pytest.skip(reason)
    image = Image(tmp_path_factory.mktemp("image"))
    build, *_ = documented("docs/container.md")
    image.build(build)
    return image


def test_image_is_small_and_its_user_is_torchserves(image, record_property):
    # When
    added = image.added_bytes(BASE)
    # Then
    record_property("image `server` without torch, beside its base", f"{added / 1e6:.0f} MB")
    assert 0 < added < MAX_BYTES
    # And a new volume takes over the owner of the store
    look = ["sh", "-c", "touch model-store/mark && id -u && id -un && pwd"]
    who = image.run(["docker", "run", "--rm", "--volume", STORE, IMAGE, *look])
    assert who.split() == ["1000", "model-server", "/home/model-server"]


@pytest.mark.parametrize(("index", "answers"), [(1, 2), (2, 1)], ids=["torchserve", "read-only"])
def test_documentation_of_the_image_works_as_pasted(image, index, answers):
    # When
    printed = image.paste(documented("docs/container.md")[index])
    # Then
    size = str(PHOTO.stat().st_size)
    assert size in printed
    assert (answers == 2) == ("TorchServe Version is" in printed)


def test_clouds_documentation_works_as_pasted(image):
    [vertex] = documented("docs/vertex-ai.md")
    [sagemaker] = documented("docs/sagemaker.md")
    assert '{"predictions": [2, 4]}' in image.paste(vertex)
    assert str(PHOTO.stat().st_size) in image.paste(sagemaker)


@pytest.mark.parametrize("command", [[], ["serve"]], ids=["nothing", "serve"])
def test_container_serves_what_its_volume_has(image, command):
    # Given
    options = ("--env", "FERRY_LOAD_MODELS=all", "--volume", f"{image.store}:{STORE}:ro")
    with image.started(*command, options=options) as running:
        # When
        eventually(lambda: running.answers("readyz"), START_S)
        # Then
        assert running.ask("POST", "predictions/mnist", data=b"four").text == "4"
        assert "Model server started." in running.logs()
        # And the user may change what TorchServe's may
        running.execute("touch", f"{Path(STORE).parent}/mark")
        running.execute("test", "-s", "logs/access_log.log")


def test_stopped_container_finishes_its_work_and_ends_with_exit_code_0(image):
    # Given
    options = ("--volume", f"{image.store}:{STORE}:ro", *CONFINED)
    line = ("torchserve", "--start", "--ncs", "--models", "mnist.mar", "--disable-token-auth")
    with image.started(*line, options=options) as running, ThreadPoolExecutor() as pool:
        eventually(lambda: running.answers("readyz"), START_S)
        answer = pool.submit(running.ask, "POST", "predictions/mnist", data=b"hold")
        running.execute("sh", "-c", "until test -e /tmp/holding; do sleep 0.1; done")
        # When
        stopping = pool.submit(image.run, ["docker", "stop", running.name])
        eventually(lambda: "draining" in running.logs(), STOP_S)
        running.execute("touch", "/tmp/go")
        # Then
        assert answer.result().text == "4"
        stopping.result()
        assert running.state()["ExitCode"] == 0


def test_container_of_any_user_of_the_root_group_serves(image):
    # Given a user that the image does not know, as OpenShift chooses one
    options = ("--user", "1000680000:0", "--env", "FERRY_LOAD_MODELS=all", "--volume")
    with image.started(options=(*options, f"{image.store}:{STORE}:ro")) as running:
        # When / Then
        eventually(lambda: running.answers("readyz"), START_S)
        assert running.ask("POST", "predictions/mnist", data=b"four").text == "4"
