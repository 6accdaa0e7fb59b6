"""The built-in handlers for images, and the images that clients may send."""

import functools
import io
import json
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.images import MOST_SCANS, is_plain_jpeg, open_image
from ts.torch_handler.object_detector import ObjectDetector
from ts.utils.util import PredictionException

from batching.protocol import Part, Request
from tests.unit.models import NAMES, Pooled, manifest, picture, scripted
from tests.unit.workers.handling.batches import batch, runner_of


@pytest.fixture
def classify(load_handler):
    """Sends bodies through the built-in image classifier as one batch."""
    torch.manual_seed(1)
    model = Pooled().eval()
    with torch.no_grad():
        model.weigh.weight *= 5  # answers that differ visibly between images
    files = {"model.pt": scripted(model), "index_to_name.json": NAMES}
    loaded = load_handler(
        files, handler="image_classifier", manifest=manifest(serializedFile="model.pt")
    )
    runner = runner_of(loaded)

    def run(*bodies, name="data", content_type="image/jpeg"):
        requests = [Request({}, [Part(name, content_type, content)]) for content in bodies]
        return runner.run(batch(*requests))

    return run


def test_batch_of_images_gives_each_its_own_answer(classify):
    # Given
    red = Image.new("RGB", (400, 300), "red")
    red.save(file := io.BytesIO(), "BMP")
    contents = [picture(), picture("L"), file.getvalue()]

    # When
    together = [json.loads(reply.body) for reply in classify(*contents)]
    alone = [json.loads(classify(content)[0].body) for content in contents]

    # Then
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert together[0] != pytest.approx(together[2], abs=1e-2)


def photo_with_exif(size_bytes):
    exif = Image.Exif()
    exif[0x9286] = "x" * size_bytes  # UserComment
    exif[0x0112] = 9  # an orientation that does not exist
    return picture(image_format="JPEG", exif=exif)


def in_mode(mode, **options):
    """A TIFF, or whatever `image_format` says, of a grey ramp."""
    buffer = io.BytesIO()
    image = Image.linear_gradient("L").convert(mode)
    image.save(buffer, options.pop("image_format", "TIFF"), **options)
    return buffer.getvalue()


PAGES = {"save_all": True, "append_images": [Image.new("RGB", (9, 9))]}
READABLE = {
    "tiff": picture(image_format="TIFF"),
    "tiff of pages": in_mode("L", **PAGES),
    "tiff by lzw": in_mode("CMYK", compression="tiff_lzw"),
    "tiff by deflate": in_mode("RGBA", compression="tiff_adobe_deflate"),
    "tiff by packbits": in_mode("P", compression="packbits"),
    "tiff by fax": in_mode("1", compression="group4"),
    "telephone's": in_mode("RGB", image_format="MPO", **PAGES),
    "grey": picture("L"),
    "cmyk": picture("CMYK", image_format="JPEG"),
    "alpha": picture("RGBA"),
    "palette": picture("P"),
    "palette with alpha": in_mode("P", image_format="PNG", transparency=bytes(range(256))),
    "bilevel": picture("1"),
    "webp": picture(image_format="WEBP"),
    "animation": in_mode("RGB", image_format="GIF", **PAGES),
    "animated png": in_mode("RGB", image_format="PNG", **PAGES),
    "exif": photo_with_exif(60_000),
    "one pixel": picture(size=(1, 1)),
}


@pytest.mark.parametrize("content", READABLE.values(), ids=READABLE)
def test_b04_unusual_image_is_classified(content, classify):
    # When
    (reply,) = classify(content)

    # Then
    assert reply.status == 200, reply.body
    assert len(json.loads(reply.body)) == 5


@pytest.mark.parametrize(("mode", "name"), [("I;16", "PNG"), ("I;16", "TIFF"), ("I;16B", "TIFF")])
def test_b04_16_bit_grey_keeps_its_brightness(mode, name, classify):
    # Given
    deep, flat = io.BytesIO(), io.BytesIO()
    Image.new(mode, (30, 30), 100 * 256).save(deep, name)
    Image.new("L", (30, 30), 100).save(flat, "PNG")

    # When
    first, second = classify(deep.getvalue(), flat.getvalue())

    # Then
    assert json.loads(first.body) == pytest.approx(json.loads(second.body), abs=1e-6)


def png_that_claims(width, height):
    """A valid header over the data of a single pixel."""
    content = bytearray(picture(size=(1, 1)))
    header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + content[24:29]
    content[12:29] = header
    content[29:33] = zlib.crc32(header).to_bytes(4, "big")
    return bytes(content)


UNREADABLE = {
    "truncated jpeg": picture(image_format="JPEG")[:-500],
    "truncated png": picture()[:200],
    "broken png": picture()[:60] + bytes(30) + picture()[90:],
    "bomb": png_that_claims(50_000, 50_000),
    "just over the limit": png_that_claims(8001, 8000),
    "claims to be empty": png_that_claims(0, 0),
    "exif only": photo_with_exif(60_000)[:50_000],
    "truncated tiff": in_mode("RGB", compression="tiff_lzw")[:-500],
    "tiff by jpeg": in_mode("RGB", compression="jpeg"),
    "tiff of floats": in_mode("F"),
    "heic": b"\0\0\0\x18ftypheic" + bytes(40),
    "eps": picture(image_format="EPS"),
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "text": b"hello",
    "empty": b"",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_b04_unreadable_image_is_a_bad_request(content, classify):
    # When
    (reply,) = classify(content)

    # Then
    assert reply.status == 400
    assert reply.body.startswith(b"Input is not a readable image: ")
    assert b"/" not in reply.body
    assert b"object at" not in reply.body


def tiff(*entries, size=(10, 10), compression=1):
    """A TIFF of one grey page with these further entries: tag, type, count and value."""
    own = [(256, 4, 1, size[0]), (257, 4, 1, size[1]), (258, 3, 1, 8), (259, 3, 1, compression)]
    table = sorted([*own, (262, 3, 1, 1), (277, 3, 1, 1), *entries])
    packed = b"".join(struct.pack("<HHLL", *entry) for entry in table)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(table)) + packed + bytes(400_000)


# What each was without a check of ours, from a body of 6 MB: gigabytes, or minutes of one core.
TIFF_BOMBS = {
    "tile larger than the image": tiff(
        (322, 4, 1, 40_000), (323, 4, 1, 50_000), (324, 4, 1, 300), (325, 4, 1, 9), compression=8
    ),
    "tile of a type that libtiff alone knows": tiff(
        (273, 4, 1, 300), (322, 17, 1, 40_000), (323, 17, 1, 50_000), compression=8
    ),
    "tiles of one pixel": tiff(
        (322, 4, 1, 1), (323, 4, 1, 1), (324, 4, 90_000, 300), size=(300, 300), compression=8
    ),
    "strips of almost everything": tiff((273, 4, 90_000, 300), (278, 4, 1, 9), (279, 4, 1, 9)),
    "one strip, twice": tiff((273, 4, 1, 300), (273, 4, 1, 300)),
    "tags that share their bytes": tiff(
        (273, 4, 1, 300), *((40_000 + tag, 7, 300_000, 300) for tag in range(1000))
    ),
    "no size": tiff((273, 4, 1, 300), (278, 4, 1, 0), size=(0, 0)),
    "directory nowhere": b"II*\0\xff\xff\xff\x7f" + bytes(99),
    "bigtiff": b"II+\0\x08\0\0\0" + bytes(99),
}


@pytest.mark.parametrize("content", TIFF_BOMBS.values(), ids=TIFF_BOMBS)
def test_b18_tiff_that_becomes_much_is_refused_before_it_is_decoded(content, monkeypatch):
    # Given
    def open_nothing(*_arguments, **_options):
        pytest.fail("Pillow has opened it")

    monkeypatch.setattr("PIL.Image.open", open_nothing)
    # When / Then
    with pytest.raises(PredictionException, match="not a readable image"):
        open_image(content)


@functools.cache
def pattern():
    """Edges, colours and a fine pattern, at sizes that no scale of a JPEG divides."""
    column, row = np.arange(4171), np.arange(3077)[:, None]
    rings = 127 + 80 * np.sin(((column - 900) ** 2 + (row - 700) ** 2) / 60_000)
    blocks = 40 * ((column // 173 + row // 131) % 2)
    fine = (column * 7 + row * 13) % 8
    channels = [rings + blocks, 255 - rings, blocks * 3 + fine]
    return Image.fromarray(np.stack(channels, axis=2).clip(0, 255).astype(np.uint8))


def photograph(image_format="JPEG", **options):
    pattern().save(buffer := io.BytesIO(), image_format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"progressive": True},
        {"image_format": "PNG", "compress_level": 1},
        {"image_format": "MPO"},
    ],
    ids=["jpeg", "progressive", "png", "mpo"],
)
def test_large_photograph_is_shrunk_while_it_is_read_and_hardly_differs(options, monkeypatch):
    # Given
    content = photograph(**options)
    whole = ImageClassifier.image_processing(open_image(content, 256))
    monkeypatch.setattr("ts.torch_handler.images.LARGE_PIXELS", 6 * 10**6)
    # When
    image = open_image(content, 256)
    # Then no pixel of the model's is off by more than three of 255 steps
    assert image.size == (1388, 1024)
    step = 1 / 255 / 0.224
    assert (ImageClassifier.image_processing(image) - whole).abs().max() < 3 * step


def test_photograph_of_48_million_pixels_is_classified_by_default(classify):
    # Given
    content = io.BytesIO()
    Image.linear_gradient("L").resize((8000, 6000)).save(content, "JPEG")
    # When
    large, small = classify(content.getvalue(), in_mode("L", image_format="JPEG"))
    # Then
    assert (large.status, small.status) == (200, 200)
    assert not is_plain_jpeg(content.getvalue())  # Pillow takes less of it than a GPU would


def test_b18_large_jpeg_may_have_fewer_scans(monkeypatch):
    # Given an image of twice as many pixels as a large one
    monkeypatch.setattr("ts.torch_handler.images.LARGE_PIXELS", 300 * 200 // 2)
    open_image(jpeg_of_scans(MOST_SCANS // 2))
    # When / Then
    with pytest.raises(PredictionException, match="too many scans"):
        open_image(jpeg_of_scans(MOST_SCANS // 2 + 1))


# Times as long as wide. With a resize to 256, a test then uses some 10 MB: 256 * 256 * 25 pixels of
# three bytes.
THINNEST = 25


@pytest.fixture
def few_pixels(classify, monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 256 * 256 * THINNEST)


@pytest.mark.parametrize("size", [(1, THINNEST + 1), (THINNEST + 1, 1), (2, 2 * THINNEST + 1)])
def test_b18_image_that_is_too_thin_to_be_resized_fails_alone(size, classify, few_pixels):
    # When
    thin, good = classify(picture(size=size), picture(size=(1, THINNEST)))

    # Then
    assert (thin.status, good.status) == (400, 200)
    assert thin.body.startswith(b"Input is not a readable image: so thin,")


def test_limit_of_pixels_below_the_models_size_refuses_none_for_its_shape(classify, monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 224 * 224)
    assert classify(picture(size=(100, 200)))[0].status == 200


def jpeg_of_scans(count, comment=b""):
    """A progressive JPEG whose last scan is repeated, with a segment of text before its pixels."""
    content = picture(image_format="JPEG", progressive=True)
    last = content[content.rindex(b"\xff\xda") : -2]
    scans = last * (count - content.count(b"\xff\xda"))
    text = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment
    return content[:2] + text + content[2:-2] + scans + b"\xff\xd9"


@pytest.mark.parametrize(
    "filling", [b"", b"\xff\xff", b"\xff\x01", b"\xff\x02\xff\xff", b"\xff\xd3"]
)
def test_b18_jpeg_of_too_many_scans_fails_alone(filling, classify):
    # Given
    content = jpeg_of_scans(MOST_SCANS + 1)
    last = content.rindex(b"\xff\xda")

    # When
    many, good = classify(content[:last] + filling + content[last:], jpeg_of_scans(MOST_SCANS))

    # Then
    assert (many.status, good.status) == (400, 200)
    assert many.body == b"Input is not a readable image: it has too many scans."
    assert [is_plain_jpeg(jpeg_of_scans(MOST_SCANS + more)) for more in (0, 1)] == [True, False]


@pytest.mark.parametrize(
    "content",
    [
        jpeg_of_scans(MOST_SCANS, comment=b"\xff\xda" * 9),
        picture(image_format="JPEG") + b"\xff\xda\0\2" * MOST_SCANS * 2,
        picture(image_format="PNG") + b"\xff\xda\0\2" * MOST_SCANS * 2,
    ],
    ids=["in a segment", "behind the image", "no jpeg"],
)
def test_bytes_that_only_look_like_a_scan_are_not_counted(content, classify):
    # When
    (reply,) = classify(content)

    # Then
    assert reply.status == 200, reply.body


@pytest.mark.parametrize("content", [b'{"a": 1}', b'"no base64!"', b"null", b'["x"]', b"7e"])
def test_json_that_is_not_an_image_is_a_bad_request(content, classify):
    # When
    (reply,) = classify(content, content_type="application/json")

    # Then
    assert reply.status == 400


def test_fewer_classes_than_topk_are_all_named():
    # Given
    handler = ImageClassifier()
    handler.set_max_result_classes(5)

    # When / Then
    assert list(handler.postprocess(torch.tensor([[1.0, 3.0]]))[0]) == ["1", "0"]
    assert handler.get_max_result_classes() == 5


@pytest.mark.parametrize("built_in", [ImageClassifier, ObjectDetector])
@pytest.mark.parametrize("device", [torch.device("cpu"), "cpu", None])
def test_handler_that_does_not_call_our_constructor_reads_images_for_any_device(built_in, device):
    # Given
    class Silent(built_in):
        def __init__(self):
            self.device = device

    # When / Then
    assert Silent().preprocess([{"data": picture()}] * 2)[1].device.type == "cpu"


def test_object_detector_takes_images_of_different_sizes():
    # Given
    handler = ObjectDetector()
    handler.device, handler.mapping = torch.device("cpu"), {"1": "cat", "2": "dog"}
    box = torch.tensor([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]])
    found = {"boxes": box, "labels": torch.tensor([1, 2]), "scores": torch.tensor([0.9, 0.4])}
    handler.model = lambda images: ({}, [found for _ in images])

    # When
    images = handler.preprocess([{"data": picture()}, {"body": picture(size=(10, 20))}])
    output = handler.postprocess(handler.inference(images))

    # Then
    assert [tuple(image.shape) for image in images] == [(3, 200, 300), (3, 20, 10)]
    assert output == [[{"cat": [0.0, 1.0, 2.0, 3.0], "score": pytest.approx(0.9)}]] * 2


def test_detector_of_another_model_finds_its_answer_as_the_model_gave_it():
    # Given a model that answers with another kind of tuple, as YOLO's do, on some device
    class Own(ObjectDetector):
        def preprocess(self, data):
            return torch.zeros(len(data), 3, 8, 8)

        def postprocess(self, data):
            return [data[0]] * len(data[1])

    handler = Own()
    handler.device = torch.device("meta")
    handler.model = lambda images: (images.device.type, list(range(len(images))))

    # When
    output = handler.postprocess(handler.inference(handler.preprocess([{}, {}])))

    # Then
    assert output == ["meta", "meta"]
