"""What is no image is refused with a reason, and the images in its batch are classified."""

import io
import json
import warnings
import zipfile
from collections.abc import Iterator

import pytest
import torch
from PIL import Image

from tests.e2e.archives import manifest
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import FerryServer
from tests.e2e.photos import photos
from tests.e2e.refusals import assert_error


@pytest.fixture(scope="module")
def classifier(server: FerryServer) -> Iterator[str]:
    """The built-in image_classifier around a small network."""
    torch.manual_seed(7)
    network = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 10)
    )
    weights = io.BytesIO()
    with warnings.catch_warnings():
        # TorchScript, which archives hold, is deprecated; some torch versions warn of it.
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(network.eval(), torch.zeros(2, 3, 224, 224)), weights)
    with zipfile.ZipFile(server.store / "small.mar", "w") as archive:
        text = manifest("small", "1.0", "image_classifier", serializedFile="small.pt")
        archive.writestr("MAR-INF/MANIFEST.json", text)
        archive.writestr("small.pt", weights.getvalue())
    with server.model("small.mar", "small", batch_size=4, max_batch_delay=150) as model:
        yield model


def truncated_photo() -> bytes:
    content = photos(1)[0]
    return content[: len(content) // 2]


def decompression_bomb() -> bytes:
    """A small PNG that claims to be 50,000 pixels square."""
    stream = io.BytesIO()
    Image.new("1", (1, 1)).save(stream, "PNG")
    content = bytearray(stream.getvalue())
    content[16:24] = (50_000).to_bytes(4, "big") * 2
    return bytes(content)


def greyscale() -> bytes:
    stream = io.BytesIO()
    Image.new("L", (30, 40), 99).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(truncated_photo(), id="truncated image"),
        pytest.param(b"this is text\n" * 50, id="not an image"),
        pytest.param(b"", id="0-byte body"),
        pytest.param(decompression_bomb(), id="claims 2.5 gigapixels"),
        pytest.param(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", id="eps"),
    ],
)
def test_unreadable_image_is_refused_alone(
    server: FerryServer, classifier: str, content: bytes
) -> None:
    # When three photos share a batch with something that is none
    good = photos(3)
    with Clients(server.inference, 4) as clients:
        exchange = clients.ask(f"/predictions/{classifier}", [good[0], content, *good[1:]])

    # Then it is refused with a reason and the photos are classified
    refused = exchange.answers.pop(1)
    document = json.loads(refused.body)
    assert refused.status == 400
    assert_error(
        refused.status, refused.body, (400, "InternalServerException", document["message"])
    )
    assert "not a readable image" in document["message"]
    assert exchange.statuses == [200] * 3
    assert all(len(json.loads(body)) == 5 for body in exchange.bodies)


@pytest.mark.slow
def test_unusual_but_readable_image_is_classified(server: FerryServer, classifier: str) -> None:
    # When a greyscale picture comes, which TorchServe fails at
    response = server.predict(classifier, greyscale())

    # Then it is classified
    assert response.status_code == 200
    assert len(response.json()) == 5
