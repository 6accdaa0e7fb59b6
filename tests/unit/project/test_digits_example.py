import importlib
import io
import json
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from ts.context import Context, RequestProcessor

from examples.digits import build
from examples.digits.data import held_out

# With the training, which a busy machine takes minutes for.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    archive = build.build(tmp_path_factory.mktemp("store"))
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(archive) as source:
        source.extractall(folder)
    return folder


@pytest.fixture
def context(model_dir):
    manifest = json.loads((model_dir / "MAR-INF" / "MANIFEST.json").read_text())
    made = Context("digits", str(model_dir), manifest, 3, None, "0")
    made.request_processor = [RequestProcessor({}) for _ in range(3)]
    return made


@pytest.fixture
def handler(model_dir, context, monkeypatch):
    """The handler out of the archive, with nothing of this repository beside it."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(model_dir))
    for name in ("handler", "model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    instance = importlib.import_module("handler").DigitsHandler()
    instance.initialize(context)
    yield instance
    torch.set_num_threads(threads)
    for name in ("handler", "model"):
        del sys.modules[name]


def test_model_reads_95_percent_of_held_out_digits(handler):
    # Given
    network = handler._network
    pictures = [np.asarray(Image.open(io.BytesIO(png))) for png, _ in held_out()]
    batch = torch.from_numpy(np.stack(pictures)).unsqueeze(1).float() / 255
    labels = torch.tensor([label for _, label in held_out()])
    # When
    with torch.inference_mode():
        digits = network(batch).argmax(dim=1)
    # Then
    assert (digits == labels).float().mean() >= 0.95


def empty_png(*size):
    stream = io.BytesIO()
    Image.new("1", size).save(stream, "PNG")
    return stream.getvalue()


READABLE = "PNG"
BODIES = {
    "empty": (b"", READABLE),
    "garbage": (b"not an image", READABLE),
    "cut": (held_out()[0][0][:40], READABLE),
    # 144 megapixels, of which Pillow by itself only warns.
    "huge": (empty_png(12_000, 12_000), READABLE),
    "wide": (empty_png(2000, 20), "larger than 1024"),
    "text": ("text", READABLE),
    "missing": (None, READABLE),
}


@pytest.mark.parametrize(("body", "reason"), BODIES.values(), ids=BODIES)
def test_handler_refuses_one_row_when_unreadable(handler, context, body, reason):
    # Given
    (first, first_label), (last, last_label) = held_out()[2], held_out()[3]
    # When
    answers = handler.handle([{"body": first}, {"body": body}, {"body": last}], context)
    # Then
    assert (answers[0]["digit"], answers[2]["digit"]) == (first_label, last_label)
    assert reason in answers[1]["error"]
    statuses = [one.get_response_status_code() for one in context.request_processor]
    assert statuses == [200, 400, 200]
