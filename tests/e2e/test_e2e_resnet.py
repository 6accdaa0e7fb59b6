"""A real network, archived by TorchServe's own tool, answers as it does without a server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from benchmarks.networks import make_network, pixels
from tests.e2e.clients import TIME_TO_FILL_MS, Clients, needs_curl
from tests.e2e.ferry_process import FerryServer
from tests.e2e.metrics_text import Scrape
from tests.e2e.photos import photos

ARCHIVER = Path(sys.executable).parent / "torch-model-archiver"
PHOTOS = 8
LOAD_S = 400  # preparing 152 layers takes a busy machine minutes

# The archive's model as it came; and prepared, with its normalisations folded into its layers.
# 152 random layers magnify the last digits.
TOLERANCES = {"prepare: false": 1e-4, "prepare: true": 1e-3}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_curl,
    # TorchScript, which archives hold, is deprecated; some torch versions warn of it.
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*"),
]


@dataclass(frozen=True)
class Served:
    """A registered ResNet-152, the photos, and each photo's probabilities without a server."""

    model_name: str
    paths: list[Path]
    expected: list[torch.Tensor]
    tolerance: float


def archive(network: torch.nn.Module, config: str, folder: Path, store: Path) -> str:
    """`resnet-152.mar`, made by torch-model-archiver from the scripted network."""
    weights = folder / "resnet-152.pt"
    torch.jit.script(network).save(str(weights))
    (folder / "model-config.yaml").write_text(f"{config}\nstartupTimeout: {LOAD_S}\n")
    arguments = {
        "--model-name": "resnet-152",
        "--version": "1.0",
        "--serialized-file": str(weights),
        "--handler": "image_classifier",
        "--config-file": str(folder / "model-config.yaml"),
        "--export-path": str(store),
        "--archive-format": "zip-store",  # deflating random numbers takes long and saves little
    }
    words = [word for pair in arguments.items() for word in pair]
    subprocess.run([str(ARCHIVER), *words], check=True, capture_output=True, timeout=120)
    weights.unlink()
    return "resnet-152.mar"


@pytest.fixture(scope="module", params=TOLERANCES)
def served(
    request: pytest.FixtureRequest, server: FerryServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("resnet")
    contents = photos(PHOTOS)
    paths = []
    for number, content in enumerate(contents):
        paths.append(folder / f"photo-{number}.jpg")
        paths[-1].write_bytes(content)
    examples = [pixels(content) for content in contents]
    network = make_network(examples)
    with torch.inference_mode():
        expected = [network(example).softmax(dim=1)[0] for example in examples]
    file_name = archive(network, request.param, folder, server.store)
    response = server.http.post(
        f"{server.management}/models?url={file_name}"
        f"&batch_size=8&max_batch_delay={TIME_TO_FILL_MS}&initial_workers=1&synchronous=true",
        timeout=LOAD_S + 30,
    )
    assert response.status_code == 200, response.text
    yield Served("resnet-152", paths, expected, TOLERANCES[request.param])
    server.manage("DELETE", "models/resnet-152")
    (server.store / file_name).unlink()


def curl(server: FerryServer, served: Served, number: int) -> dict[str, float]:
    url = f"{server.inference}/predictions/{served.model_name}"
    command = ["curl", "-sS", "--fail-with-body", url, "-T", str(served.paths[number])]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def assert_is_direct_forward(
    answer: dict[str, float], expected: torch.Tensor, tolerance: float
) -> None:
    values, _ = expected.topk(5)
    assert list(answer.values()) == pytest.approx(values.tolist(), abs=tolerance)
    assert {label: expected[int(label)].item() for label in answer} == pytest.approx(
        answer, abs=tolerance
    )


def test_resnet_152_photos_have_answers_that_can_be_told_apart(served: Served) -> None:
    # Given the direct answers
    # Then any two photos differ by far more than the tolerance, so a mix-up would be seen
    for number, one in enumerate(served.expected):
        for other in served.expected[number + 1 :]:
            assert (one - other).abs().max() > 10 * max(TOLERANCES.values())


def test_resnet_152_answers_one_photo_like_a_direct_forward(
    server: FerryServer, served: Served
) -> None:
    # When a photo is sent alone
    answer = curl(server, served, 0)

    # Then it is answered with the five best classes of the direct forward
    assert len(answer) == 5
    assert_is_direct_forward(answer, served.expected[0], served.tolerance)


def test_resnet_152_answers_eight_photos_of_one_batch_like_direct_forwards(
    server: FerryServer, served: Served
) -> None:
    # Given how many batches there were
    labels = {"model": "resnet-152", "version": "1.0"}
    before = Scrape(server)

    # When eight different photos are sent at once
    with Clients(server.inference, PHOTOS) as clients:
        contents = [path.read_bytes() for path in served.paths]
        exchange = clients.ask(f"/predictions/{served.model_name}", contents)

    # Then they were one batch, and each got the answer to its own photo
    after = Scrape(server)
    batches = after.value("ferry_batch_size_count", **labels) - before.value(
        "ferry_batch_size_count", **labels
    )
    assert batches == 1
    assert exchange.statuses == [200] * PHOTOS
    for body, expected in zip(exchange.bodies, served.expected, strict=True):
        assert_is_direct_forward(json.loads(body), expected, served.tolerance)
