"""A real network, archived by TorchServe's own tool, answers as it does without a server."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from benchmarks.networks import make_decided_network, pixels
from tests.e2e.clients import TIME_TO_FILL_MS, Clients
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
    network = make_decided_network(examples)
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


def assert_is_direct_forward(
    answer: dict[str, float], expected: torch.Tensor, tolerance: float
) -> None:
    values, _ = expected.topk(5)
    assert list(answer.values()) == pytest.approx(values.tolist(), abs=tolerance)
    assert {label: expected[int(label)].item() for label in answer} == pytest.approx(
        answer, abs=tolerance
    )


def test_resnet_152_answers_eight_photos_of_one_batch_like_direct_forwards(
    server: FerryServer, served: Served
) -> None:
    # Given answers of which any two differ by far more than the tolerance: a mix-up would be seen
    for one, other in itertools.combinations(served.expected, 2):
        assert (one - other).abs().max() > 10 * max(TOLERANCES.values())
    labels = {"model": "resnet-152", "version": "1.0"}
    before = Scrape(server).value("ferry_batch_size_count", **labels)

    # When eight different photos are sent at once, and then one alone
    contents = [path.read_bytes() for path in served.paths]
    with Clients(server.inference, PHOTOS) as clients:
        exchange = clients.ask(f"/predictions/{served.model_name}", contents)
    alone = server.predict(served.model_name, contents[0])

    # Then they were one batch, and each got the five best classes of its own photo
    assert Scrape(server).value("ferry_batch_size_count", **labels) - before == 2
    assert exchange.statuses == [200] * PHOTOS
    for body, expected in zip(
        [*exchange.bodies, alone.text], [*served.expected, served.expected[0]], strict=True
    ):
        assert_is_direct_forward(json.loads(body), expected, served.tolerance)
