"""The digits example under 32 clients: every answer is the one for its own picture."""

import io
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from examples.digits.build import build
from examples.digits.data import held_out
from examples.digits.model import DigitNet
from tests.e2e.clients import Answer, Clients
from tests.e2e.ferry_process import FerryServer

CLIENTS = 32
ROUNDING = 1e-4  # the handler rounds to four decimals


def direct_forwards(archive: Path, pngs: list[bytes]) -> list[list[float]]:
    """The network's probabilities for each picture by itself, without any server."""
    network = DigitNet()
    with zipfile.ZipFile(archive) as content:
        network.load_state_dict(
            torch.load(io.BytesIO(content.read("digits.pt")), weights_only=True)
        )
    network.eval()
    probabilities = []
    with torch.inference_mode():
        for png in pngs:
            with Image.open(io.BytesIO(png)) as image:
                pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255)
            probabilities.append(network(pixels.reshape(1, 1, 8, 8)).softmax(dim=1)[0].tolist())
    return probabilities


def ask_all(server: FerryServer, path: str, pngs: list[bytes]) -> list[Answer]:
    """Each picture's answer, in order, asked by 32 clients that each ask again at once."""

    def ask_share(client: int) -> list[tuple[int, Answer]]:
        numbers = range(client, len(pngs), CLIENTS)
        with Clients(server.inference, 1) as connection:
            return [(number, connection.ask(path, [pngs[number]]).answers[0]) for number in numbers]

    with ThreadPoolExecutor(CLIENTS) as threads:
        shares = list(threads.map(ask_share, range(CLIENTS)))
    answers = dict(answer for share in shares for answer in share)
    return [answers[number] for number in range(len(pngs))]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_digits_get_the_answer_to_their_own_image_under_concurrent_clients(
    server: FerryServer,
) -> None:
    # Given the trained example and the digits that no training has seen
    archive = build(server.store)
    pictures = held_out()
    assert len(pictures) == 360
    expected = direct_forwards(archive, [png for png, _ in pictures])

    # When 32 clients send them all
    with server.model(archive.name, "digits", batch_size=8, max_batch_delay=50) as model:
        answers = ask_all(server, f"/predictions/{model}", [png for png, _ in pictures])

    # Then every single answer is the direct forward of that very picture
    assert {answer.status for answer in answers} == {200}
    documents = [json.loads(answer.body) for answer in answers]
    for document, probabilities in zip(documents, expected, strict=True):
        assert document["digit"] == int(np.argmax(probabilities))
        assert document["probabilities"] == pytest.approx(probabilities, abs=ROUNDING)

    # And nearly all of them are right, out of batches of more than four on average
    labels = [label for _, label in pictures]
    right = sum(
        document["digit"] == label for document, label in zip(documents, labels, strict=True)
    )
    batches = sum(1 / int(answer.headers["x-batch-size"]) for answer in answers)
    mean_batch = len(answers) / batches
    print(f"{right} of {len(labels)} right, mean batch {mean_batch:.2f}")  # noqa: T201
    assert right / len(labels) >= 0.95
    assert mean_batch > 4
