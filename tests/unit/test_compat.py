"""The `ts` package: what handlers written for TorchServe import, and what they get."""

import base64
import importlib
import io
import json
import os
import pkgutil
import sys
import threading
import zlib

import pytest
import torch
import ts
from PIL import Image
from torchvision import transforms
from ts.context import Context, RequestProcessor
from ts.handler_utils.micro_batching import MicroBatching
from ts.handler_utils.timer import timed
from ts.handler_utils.utils import import_class, send_intermediate_predict_response
from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_store import MetricsStore
from ts.metrics.process_memory_metric import check_process_mem_usage
from ts.service import PredictionException
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.image_segmenter import ImageSegmenter
from ts.torch_handler.object_detector import ObjectDetector
from ts.torch_handler.unit_tests.test_utils.mock_context import MockContext
from ts.utils import util

from batching.protocol import Batch, Claimed, Part, Request
from batching.settings import Settings
from workers.runner import Runner

NAMES = json.dumps({str(number): ["n0", f"label{number}"] for number in range(8)})
MODEL_SOURCE = """
import torch
class Pooled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weigh = torch.nn.Linear(3, {classes})
    def forward(self, images):
        return self.weigh(images.mean(dim=(2, 3)))
"""


class Pooled(torch.nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.weigh = torch.nn.Linear(3, classes)

    def forward(self, images):
        return self.weigh(images.mean(dim=(2, 3)))


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def scripted(model):
    buffer = io.BytesIO()
    with pytest.warns(FutureWarning, match="deprecated"):
        torch.jit.save(torch.jit.script(model), buffer)
    return buffer.getvalue()


def manifest(**model):
    return {"model": {"modelName": "m", "modelVersion": "1.0", **model}}


def picture(mode="RGB", size=(300, 200), image_format="PNG", **options):
    gradient = Image.linear_gradient("L").resize(size)
    channels = [gradient, gradient.rotate(90), gradient.rotate(180)]
    image = Image.merge("RGB", channels).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


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
    runner = Runner(loaded, Settings())

    def run(*bodies, name="data", content_type="image/jpeg"):
        requests = [Request({}, [Part(name, content_type, content)]) for content in bodies]
        items = [Claimed(str(index), 1, 0, request) for index, request in enumerate(requests)]
        return runner.run(Batch(items))

    run.model = model
    return run


def test_every_module_imports_without_captum_and_is_documented():
    # When
    names = [
        module.name
        for module in pkgutil.walk_packages(ts.__path__, "ts.")
        if importlib.import_module(module.name).__doc__
    ]

    # Then
    assert {"ts.context", "ts.torch_handler.text_classifier"} < set(names)
    assert len(names) == len(list(pkgutil.walk_packages(ts.__path__, "ts.")))
    assert "captum" not in sys.modules


@pytest.mark.parametrize("name", ["data", "body"])
def test_image_classifier_equals_torchvisions_own_transforms(name, classify):
    # Given
    content = picture(image_format="JPEG")
    transform = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    with torch.inference_mode():
        logits = classify.model(transform(Image.open(io.BytesIO(content))).unsqueeze(0))
    expected = torch.softmax(logits, 1)[0].sort(descending=True)

    # When
    (reply,) = classify(content, name=name)
    answer = json.loads(reply.body)

    # Then
    assert reply.status == 200
    assert list(answer) == [f"label{index}" for index in expected.indices[:5].tolist()]
    assert list(answer.values()) == pytest.approx(expected.values[:5].tolist(), abs=1e-4)


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


def palette_with_alpha():
    image = Image.linear_gradient("L").convert("P")
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=bytes(range(256)))
    return buffer.getvalue()


def animation():
    buffer = io.BytesIO()
    frames = [Image.new("RGB", (40, 40), color) for color in ("red", "blue")]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


READABLE = {
    "grey": picture("L"),
    "cmyk": picture("CMYK", image_format="JPEG"),
    "alpha": picture("RGBA"),
    "palette": picture("P"),
    "palette with alpha": palette_with_alpha(),
    "bilevel": picture("1"),
    "webp": picture(image_format="WEBP"),
    "animation": animation(),
    "one pixel": picture(size=(1, 1)),
}


@pytest.mark.parametrize("content", READABLE.values(), ids=READABLE)
def test_unusual_image_is_classified(content, classify):
    # When
    (reply,) = classify(content)

    # Then
    assert reply.status == 200, reply.body
    assert len(json.loads(reply.body)) == 5


def test_16_bit_grey_keeps_its_brightness(classify):
    # Given
    deep, flat = io.BytesIO(), io.BytesIO()
    Image.new("I;16", (30, 30), 100 * 256).save(deep, "PNG")
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


def broken_png():
    content = bytearray(picture())
    content[60:90] = b"\0" * 30
    return bytes(content)


UNREADABLE = {
    "truncated jpeg": picture(image_format="JPEG")[:-500],
    "truncated png": picture()[:200],
    "broken png": broken_png(),
    "bomb": png_that_claims(50_000, 50_000),
    "just over the limit": png_that_claims(6000, 6000),
    "tiff": picture(image_format="TIFF"),
    "eps": picture(image_format="EPS"),
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "text": b"hello",
    "empty": b"",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_image_is_a_bad_request(content, classify):
    # When
    (reply,) = classify(content)

    # Then
    assert reply.status == 400
    assert reply.body.startswith(b"Input is not a readable image: ")
    assert b"/" not in reply.body
    assert b"object at" not in reply.body


def test_unreadable_image_fails_alone_in_its_batch(classify):
    # When
    replies = classify(picture(), b"hello", picture("L"))

    # Then
    assert [reply.status for reply in replies] == [200, 400, 200]


def test_image_may_come_as_base64_or_as_numbers(classify):
    # Given
    encoded = base64.b64encode(picture())
    numbers = json.dumps(torch.zeros(3, 224, 224).tolist()).encode()

    # When
    (text,) = classify(encoded, content_type="text/plain")
    (listed,) = classify(numbers, content_type="application/json")

    # Then
    assert json.loads(text.body) == json.loads(classify(picture())[0].body)
    assert listed.status == 200


@pytest.mark.parametrize("content", [b'{"a": 1}', b'"no base64!"', b"null", b'["x"]', b"7e"])
def test_json_that_is_no_image_is_a_bad_request(content, classify):
    # When
    (reply,) = classify(content, content_type="application/json")

    # Then
    assert reply.status == 400


def test_fewer_classes_than_topk_are_all_named():
    # Given
    handler = ImageClassifier()
    handler.set_max_result_classes(5)

    # When
    (row,) = handler.postprocess(torch.tensor([[1.0, 3.0]]))

    # Then
    assert list(row) == ["1", "0"]
    assert handler.get_max_result_classes() == 5


def test_eager_model_gets_its_state_dict(load_handler):
    # Given
    model = Pooled(2).eval()
    files = {"eager_net.py": MODEL_SOURCE.format(classes=2), "w.pth": saved(model.state_dict())}
    section = manifest(modelFile="eager_net.py", serializedFile="w.pth")

    # When
    loaded = load_handler(files, handler="base_handler", manifest=section)
    loaded.context.request_processor = [RequestProcessor({})]
    images = torch.rand(2, 3, 4, 4)
    output = loaded.entry(images.tolist(), loaded.context)

    # Then
    assert torch.allclose(torch.tensor(output), model(images))
    assert ("HandlerTime", MetricTypes.GAUGE) in loaded.context.metrics.cache


def test_eager_model_file_with_two_classes_is_refused(load_handler):
    # Given
    section = manifest(modelFile="two_nets.py", serializedFile="w.pth")

    # When / Then
    with pytest.raises(ValueError, match="Expected only one class"):
        load_handler(
            {"two_nets.py": "class A: pass\nclass B: pass", "w.pth": b""},
            handler="base_handler",
            manifest=section,
        )


@pytest.mark.parametrize(
    ("section", "text"),
    [
        (manifest(modelFile="gone.py", serializedFile="w.pth"), r"Missing the model\.py file"),
        (manifest(serializedFile="gone.pt"), "Missing the model weights file"),
        (manifest(serializedFile="x"), "No model weights could be loaded"),
    ],
)
def test_missing_part_of_a_model_is_a_load_error(section, text, load_handler):
    # When / Then
    with pytest.raises(RuntimeError, match=text):
        load_handler({"x": ""}, handler="base_handler", manifest=section)


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("is_eager", [True, False])
def test_checkpoint_that_runs_code_is_refused(is_eager, load_handler, tmp_path):
    # Given
    section = manifest(serializedFile="w.pt", **({"modelFile": "evil_net.py"} if is_eager else {}))
    evil = tmp_path / "evil"
    files = {"evil_net.py": MODEL_SOURCE.format(classes=2), "w.pt": saved(Touch(str(evil)))}

    # When / Then
    with pytest.raises(Exception, match=r"Weights only load failed|constants"):
        load_handler(files, handler="base_handler", manifest=section)
    assert not evil.exists()


@pytest.mark.parametrize(
    ("pt2", "options"),
    [
        (None, None),
        ("eager", {"backend": "eager"}),
        ("no_such_backend", None),
        ({"backend": "inductor", "mode": "x"}, {"backend": "inductor", "mode": "x"}),
        ({"compile": {"enable": True, "backend": "eager"}}, {"backend": "eager"}),
        ({"compile": {"enable": False, "backend": "eager"}}, None),
        ({"export": {"aot_compile": True}}, None),
    ],
)
def test_pt2_in_the_config_asks_for_torch_compile(pt2, options):
    # Given
    handler = BaseHandler()
    handler.model_yaml_config = {"pt2": pt2}

    # When / Then
    assert handler._compile_options() == options


def test_explanation_without_captum_is_told_to_the_client(classify, monkeypatch):
    # Given
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    handler = ImageClassifier()

    # When / Then
    with pytest.raises(PredictionException, match="captum") as caught:
        handler.get_insights(torch.zeros(1, 3, 2, 2), None)
    assert caught.value.error_code == 501


def test_explain_header_asks_for_insights():
    # Given
    class Explaining(BaseHandler):
        def get_insights(self, tensor_data, raw, target=0):
            return [(tensor_data.tolist(), raw, target)]

    handler, context = Explaining(), MockContext()
    handler.device = torch.device("cpu")
    context.explain = "True"
    handler.preprocess = lambda rows: torch.zeros(1)

    # When
    output = handler.handle([{"data": "x", "target": bytearray(b"3")}], context)

    # Then
    assert output == [([0.0], "x", 3)]
    assert handler.explain is True


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


def test_object_detector_stacks_images_of_one_size():
    # Given
    handler = ObjectDetector()
    handler.device = torch.device("cpu")

    # When / Then
    assert handler.preprocess([{"data": picture()}] * 2).shape == (2, 3, 200, 300)


def test_image_segmenter_names_class_and_probability_of_each_pixel():
    # Given
    scores = torch.zeros(1, 2, 1, 2)
    scores[0, 1, 0, 1] = 100

    # When
    output = ImageSegmenter().postprocess({"out": scores})

    # Then
    assert output == [[[[0.0, 0.5], [1.0, 1.0]]]]


class BagOfWords(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(5, 2, mode="sum")
        with torch.no_grad():
            self.bag.weight.copy_(torch.tensor([[0, 0], [5, 0], [0, 5], [0, 9], [2, 0]]))

    def forward(self, tokens: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.bag(tokens, offsets)


def test_text_classifier_answers_every_row_of_a_batch(load_handler):
    # Given
    vocabulary = {"<unk>": 0, "good": 1, "bad": 2, "not good": 3, "cafe": 4}
    files = {
        "m.pt": scripted(BagOfWords()),
        "source_vocab.pt": saved(vocabulary),
        "index_to_name.json": '{"0": "up", "1": "down"}',
    }
    loaded = load_handler(
        files, handler="text_classifier", manifest=manifest(serializedFile="m.pt")
    )
    loaded.context.request_processor = [RequestProcessor({})] * 4
    rows = [
        {"data": "<b>GOOD!</b>"},
        {"body": bytearray(b"bad")},
        {"data": "isn't good"},
        {"data": "CAF\N{LATIN CAPITAL LETTER E WITH ACUTE}"},
    ]

    # When
    output = loaded.entry(rows, loaded.context)

    # Then
    assert [max(row, key=row.get) for row in output] == ["up", "down", "down", "up"]
    assert all(sum(row.values()) == pytest.approx(1) for row in output)


def test_text_classifier_refuses_what_is_no_text():
    # Given
    from_module = importlib.import_module("ts.torch_handler.text_classifier")

    # When / Then
    with pytest.raises(PredictionException, match="not text") as caught:
        from_module.TextClassifier().preprocess([{"data": {"a": 1}}])
    assert caught.value.error_code == 400


@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        ('{"0": "a", "1": ["id", "b"]}', {"0": "a", "1": "b"}),
        ('{"object_type_names": ["a", "b"]}', {"0": "a", "1": "b"}),
    ],
)
def test_label_mapping_is_read_in_all_its_forms(text, mapping, tmp_path):
    # Given
    path = tmp_path / "index_to_name.json"
    path.write_text(text)

    # When / Then
    assert util.load_label_mapping(path) == mapping


@pytest.mark.parametrize("text", ["[]", '{"0": 1}', '{"0": ["a", 1]}'])
def test_label_mapping_of_another_shape_is_refused(text, tmp_path):
    # Given
    path = tmp_path / "index_to_name.json"
    path.write_text(text)

    # When / Then
    with pytest.raises(ValueError, match=r"index_to_name\.json"):
        util.load_label_mapping(path)


def test_label_mapping_is_none_without_the_file(tmp_path):
    # When / Then
    assert util.load_label_mapping(tmp_path / "none.json") is None


def test_classes_are_mapped_to_labels():
    # When / Then
    assert util.map_class_to_label([[0.9, 0.1]]) == [{"0": 0.9, "1": 0.1}]
    mapping = {"0": "cat", "1": "dog"}
    assert util.map_class_to_label([[0.9], [0.8]], mapping, [[1], [0]]) == [
        {"dog": 0.9},
        {"cat": 0.8},
    ]
    with pytest.raises(TypeError, match="tolist"):
        util.map_class_to_label(torch.zeros(1, 2))


def test_context_answers_by_row():
    # Given
    context = Context("m", "/", None, 2, None, "0.12.0")
    context.request_ids = {0: "a", 1: "b"}
    context.request_processor = [
        RequestProcessor({"Ts_Request_Sequence_Id": "s"}),
        RequestProcessor({}),
    ]

    # When
    context.set_all_response_status(201, "Made")
    context.set_response_status(404, idx=1)
    context.set_response_content_type(1, "text/plain")

    # Then
    assert (context.get_request_id(), context.get_request_id(1)) == ("a", "b")
    assert (context.get_sequence_id(0), context.get_sequence_id(1)) == ("s", "")
    assert context.get_response_status(0) == (201, "Made")
    assert context.get_response_status(1) == (404, "")
    assert context.get_response_content_type(0) is None
    assert context.get_response_headers(1) == {"content-type": "text/plain"}
    assert context.get_all_request_header(0) == {"Ts_Request_Sequence_Id": "s"}


def test_metrics_add_up_by_dimension():
    # Given
    metrics = MetricsStore("m")

    # When
    metrics.add_counter("calls", 1)
    metrics.add_counter("calls", 2)
    metrics.add_counter(
        "calls", 5, dimensions=[Dimension("ModelName", "x"), Dimension("Level", "y")]
    )
    metrics.add_time("took", 1.5, None, "ms")
    metrics.add_time("took", 2.5, None, "ms")
    metrics.add_error("oops")

    # Then
    calls = metrics.get_metric("calls")
    assert calls.values == {("m", "Model"): 3, ("x", "y"): 5}
    assert metrics.get_metric("took", MetricTypes.GAUGE).values == {("m", "Model"): 2.5}
    assert metrics.get_metric("took", MetricTypes.GAUGE).unit == "Milliseconds"
    assert metrics.get_metric("oops").values == {("m", "Error"): 1}


def test_metric_with_wrong_unit_or_dimensions_is_refused():
    # Given
    metrics = MetricsStore("m")
    histogram = metrics.add_metric_to_cache("h", "ms", ["A"], MetricTypes.HISTOGRAM)

    # When / Then
    histogram.add_or_update(1, ["a"])
    with pytest.raises(ValueError, match="dimensions"):
        histogram.add_or_update(1, [])
    with pytest.raises(ValueError, match="unit must be one of"):
        metrics.add_size("s", 1, unit="ms")
    with pytest.raises(KeyError):
        metrics.get_metric("absent")


def test_metric_is_written_as_torchserve_writes_it():
    # Given
    metric = Metric("Load", 1, "percent", [Dimension("Level", "Host")], metric_method="counter")

    # When
    metric.update(2)

    # Then
    assert str(metric) == "Load.Percent:3|#Level:Host"
    assert metric.to_dict()["Dimensions"] == [{"Name": "Level", "Value": "Host"}]


def test_memory_of_this_process_is_known():
    # When
    (line,) = check_process_mem_usage([f"{os.getpid()}\n", "\n"])

    # Then
    assert int(line.partition(":")[2]) > 1_000_000


def test_timed_step_is_measured_when_the_config_says_so():
    # Given
    class Handler:
        context = MockContext()

        @timed
        def step(self):
            return "done"

    handler = Handler()

    # When
    assert handler.step() == "done"
    silent = dict(handler.context.metrics.cache)
    handler.context.model_yaml_config = {"handler": {"profile": True}}
    handler.step()

    # Then
    assert silent == {}
    assert ("ts_handler_step", MetricTypes.GAUGE) in handler.context.metrics.cache


class Steps:
    """A handler whose steps meet in the middle: two parts must be under way at the same time."""

    def __init__(self):
        self.meeting = threading.Barrier(2, timeout=5)
        self.seen = []

    def preprocess(self, rows):
        if rows[0] == "c":
            self.meeting.wait()
        return list(rows)

    def inference(self, rows):
        if rows[0] == "a":
            self.meeting.wait()
        self.seen.append(self.batching.get_micro_batch_idx())
        return [row.upper() for row in rows]

    def postprocess(self, rows):
        if "X" in rows:
            raise PredictionException("no x", 400)
        return rows


def test_micro_batches_overlap_and_keep_their_order():
    # Given
    steps = Steps()
    steps.batching = MicroBatching(steps, micro_batch_size=2)

    # When
    output = steps.batching(list("abcde"), MockContext())

    # Then
    assert output == list("ABCDE")
    assert steps.seen == [0, 1, 2]
    steps.batching.shutdown()


def test_micro_batch_error_reaches_the_caller():
    # Given
    steps = Steps()
    steps.batching = MicroBatching(steps)
    steps.batching.parallelism = {"preprocess": 2}

    # When / Then
    with pytest.raises(PredictionException, match="no x"):
        steps.batching(list("xy"), MockContext())
    assert steps.batching.parallelism == {"preprocess": 2, "inference": 1, "postprocess": 1}
    with pytest.raises(ValueError, match="parallelism knows"):
        steps.batching.parallelism = {"other": 1}
    steps.batching.shutdown()


def test_class_is_imported_by_name():
    # When / Then
    assert import_class("ts.context.Context") is Context
    assert import_class("Context", module_prefix="ts.context") is Context
    with pytest.raises(ImportError, match="no class Nothing"):
        import_class("ts.context.Nothing")
    with pytest.raises(ImportError, match="does not name a module"):
        import_class("Context")


def test_streaming_says_that_it_is_not_there_yet():
    # When / Then
    with pytest.raises(NotImplementedError, match="not supported yet"):
        send_intermediate_predict_response(["x"], {}, "ok", 200, None)
