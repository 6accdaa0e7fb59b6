"""The `ts` package does for handlers what TorchServe's does."""

import copy
import importlib
import json
import os
import pickle  # noqa: TID251 - headers that go to another process of the handler
import pkgutil
import queue
import sys
import time
import types
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import ts
from ts.context import Context, RequestProcessor
from ts.handler_utils import text_utils
from ts.handler_utils.hf_batch_streamer import TextIteratorStreamerBatch
from ts.handler_utils.timer import timed
from ts.handler_utils.utils import import_class, send_intermediate_predict_response
from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric
from ts.metrics.metric_encoder import MetricEncoder
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_store import MetricsStore
from ts.metrics.process_memory_metric import check_process_mem_usage
from ts.module_finder import LEFT_OUT
from ts.service import emit_metrics
from ts.torch_handler.unit_tests.test_utils.mock_context import MockContext
from ts.utils import util


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
    assert not set(names) & set(LEFT_OUT)


@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        ('{"0": "a", "1": ["id", "b"]}', {"0": "a", "1": "b"}),
        ('{"object_type_names": ["a", "b"]}', {"0": "a", "1": "b"}),
        ("[]", None),
        ('{"0": 1}', None),
        ('{"0": ["a", 1]}', None),
    ],
)
def test_label_mapping_is_read_in_all_its_forms_and_no_others(text, mapping, tmp_path):
    # Given
    path = tmp_path / "index_to_name.json"
    assert util.load_label_mapping(path) is None
    path.write_text(text)

    # When / Then
    if mapping:
        assert util.load_label_mapping(path) == mapping
    else:
        with pytest.raises(ValueError, match=r"index_to_name\.json"):
            util.load_label_mapping(path)


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
    assert context._system_properties["model_dir"] == "/"
    assert context._request_processor is context.request_processor
    assert (context.get_request_id(), context.get_request_id(1)) == ("a", "b")
    assert (context.get_sequence_id(0), context.get_sequence_id(1)) == ("s", None)
    assert RequestProcessor({}).get_response_status_phrase() is None
    assert context.get_response_status(0) == (201, "Made")
    assert context.get_response_status(1) == (404, "")
    assert context.get_response_content_type(0) is None
    assert context.get_response_headers(1) == {"content-type": "text/plain"}
    assert context.get_all_request_header(0) == {"Ts_Request_Sequence_Id": "s"}


def test_processors_of_a_batch_are_made_once_and_when_the_handler_asks():
    # Given a handler that works in threads, and with copies of its context
    context, made = Context("m", "/", None, 2, None, "0.12.0"), []

    def make():
        made.append("now")
        time.sleep(0.01)
        return [RequestProcessor({"row": row}) for row in (0, 1)]

    context.begin_batch({0: "a", 1: "b"}, make)
    assert (context.has_processors, made) == (False, [])
    assert context.metrics.request_ids == {0: "a", 1: "b"}

    # When
    with ThreadPoolExecutor(2) as pool:
        rows = [*pool.map(lambda row: copy.copy(context).get_request_header(row, "row"), (0, 1))]
    copy.copy(context).set_response_status(201, idx=1)

    # Then
    assert (rows, made) == ([0, 1], ["now"])
    assert context.has_processors
    assert context.get_response_status(1) == (201, "")


def test_headers_are_a_dictionary_with_the_clients_spelling_found_in_any_case():
    # Given
    sent = {"x-corpus": {"content-type": "image/png"}, "X-Own": "b", "x-own": "c"}
    headers = RequestProcessor(sent).get_request_properties()
    twins = [headers.copy(), copy.deepcopy(headers), pickle.loads(pickle.dumps(headers))]

    # When / Then: as the handler of TorchServe has them
    assert dict(headers) == {**headers} == json.loads(json.dumps(headers)) == sent
    # And, beyond it, by names in any case
    for twin in (headers, *twins):
        assert twin["X-Corpus"] == twin.get("X-CORPUS") == sent["x-corpus"]
        assert (twin["X-Own"], twin["X-OWN"]) == ("b", "c")  # exactly, and the last one
        assert "X-Corpus" in twin
        assert "X-Other" not in twin
        assert twin.get("X-Other", "none") == "none"
        with pytest.raises(KeyError):
            twin["X-Other"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ('It\'s "so" good; (he said): yes!', ["it", "'", "s", "so", "good", "(", "he", "said"]),
        ("one<br />two, three.four", ["one", "two", ",", "three", ".", "four"]),
    ],
)
def test_text_is_split_as_torchtext_splits_it(text, tokens):
    # When / Then
    assert text_utils.get_tokenizer("basic_english")(text)[:8] == tokens
    assert text_utils.get_tokenizer(None)(text) == text.split()
    runs = ["a", "b", "c", "a b", "b c", "a b c"]
    assert list(text_utils.ngrams_iterator(["a", "b", "c"], 3)) == runs
    with pytest.raises(ValueError, match="spacy"):
        text_utils.get_tokenizer("spacy")


def test_users_own_stand_ins_are_built_as_under_torchserve(tmp_path):
    # Given a context that a handler's test builds by hand, and the stand-in
    (tmp_path / "model-config.yaml").write_text("handler: {top_k: 3}")
    context = Context("m", "/", {"model": {}}, None, None, None)

    # When
    context._request_processor = [RequestProcessor({"explain": "True"})]
    context.metrics = MetricsStore(uuid.uuid4(), "m")
    context.metrics.add_counter("calls", 1)
    mock = MockContext(model_dir=str(tmp_path), model_yaml_config_file="model-config.yaml")

    # Then
    assert context.get_request_header(0, "explain") == "True"
    assert list(context.metrics.get_metric("calls").take()) == [
        (("ModelName", "m"), ("Level", "Model"))
    ]
    assert mock.model_yaml_config == {"handler": {"top_k": 3}}
    assert MockContext().model_yaml_config == {}


def test_measurement_that_cannot_count_is_dropped_and_logged(caplog):
    # Given measurements, which must not fail a prediction
    metrics = MetricsStore(None, "m")
    metric = metrics.add_metric_to_cache("h", "ms", ["A"], MetricTypes.HISTOGRAM)

    # When
    metric.add_or_update(float("nan"), ["a"])
    metric.add_or_update("many", ["a"])

    # Then
    assert metric.take() == {}
    assert len(caplog.records) == 2


class Streamer:
    """The part of transformers' TextIteratorStreamer that a batch of them uses."""

    def __init__(self, tokenizer, skip_prompt, timeout, **options):
        self.tokenizer = tokenizer
        self.texts = queue.SimpleQueue()

    def put(self, tokens):
        self.texts.put("".join(self.tokenizer[token] for token in tokens.tolist()))

    def end(self):
        self.texts.put(None)

    def __iter__(self):
        return self

    def __next__(self):
        if (text := self.texts.get(timeout=5)) is None:
            raise StopIteration
        return text


def test_batch_streamer_gives_the_text_of_all_rows_step_by_step(monkeypatch):
    # Given
    monkeypatch.setitem(
        sys.modules, "transformers", types.SimpleNamespace(TextIteratorStreamer=Streamer)
    )
    streamer = TextIteratorStreamerBatch(dict(enumerate("abcd")), 2)

    # When it is used, and then used again
    for _ in range(2):
        streamer.put(torch.tensor([[0, 1], [2, 3]]))
        streamer.put(torch.tensor([1, 2]))
        streamer.end()

        # Then
        assert list(streamer) == [[{"text": "ab"}, {"text": "cd"}], [{"text": "b"}, {"text": "c"}]]
    with pytest.raises(ValueError, match="shorter"):
        streamer.put(torch.tensor([1]))


def test_metric_is_written_as_torchserve_writes_it():
    # Given
    metric = Metric("Load", 1, "percent", [Dimension("Level", "Host")], metric_method="counter")

    # When
    metric.update(2)

    # Then
    assert str(metric) == "Load.Percent:3|#Level:Host"
    assert metric.to_dict()["Dimensions"] == [{"Name": "Level", "Value": "Host"}]
    assert json.loads(json.dumps([metric], cls=MetricEncoder)) == [metric.to_dict()]
    assert emit_metrics([metric]) is None
    (line,) = check_process_mem_usage([f"{os.getpid()}\n", "\n"])
    assert int(line.partition(":")[2]) > 1_000_000
    with pytest.raises(TypeError):
        json.dumps(object(), cls=MetricEncoder)


def test_timed_step_is_measured_until_its_gpu_is_done_when_the_config_says_so(monkeypatch):
    # Given a GPU that has begun to be used
    order = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("wait"))

    class Handler:
        context = MockContext()

        @timed
        def step(self):
            order.append("step")
            return "done"

    handler = Handler()

    # When
    assert handler.step() == "done"
    silent = dict(handler.context.metrics.cache)
    handler.context.model_yaml_config = {"handler": {"profile": True}}
    handler.step()

    # Then
    assert silent == {}
    assert order == ["step", "wait", "step", "wait"]
    assert ("ts_handler_step", MetricTypes.GAUGE) in handler.context.metrics.cache


def test_class_is_imported_by_name():
    # When / Then
    assert import_class("ts.context.Context") is Context
    assert import_class("Context", module_prefix="ts.context") is Context
    assert import_class("ts.handler_utils.utils.import_class") is import_class
    for name in ("ts.context.Nothing", "Context"):
        with pytest.raises(ImportError, match=r"no class Nothing|does not name a module"):
            import_class(name)


@pytest.mark.parametrize("context", [None, Context("m", "/", None, 1, None, "0.12.0")])
def test_piece_of_an_answer_is_refused_outside_of_a_worker(context):
    # When / Then
    with pytest.raises(RuntimeError, match="context of a worker"):
        send_intermediate_predict_response(["x"], {}, "ok", 200, context)
