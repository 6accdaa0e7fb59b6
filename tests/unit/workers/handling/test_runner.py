"""Batches through a handler: replies, and whose fault a failure is."""

import io
import time

import pytest
import torch
from PIL import Image
from ts.context import Context
from ts.service import PredictionException

from tests.unit.workers.handling.batches import (
    Handler,
    batch,
    body,
    error_of,
    run_one,
    runner,
    runner_of,
)
from workers.handling.handlers import LoadedModel
from workers.handling.runner import DeviceBroken


def test_handler_sees_ids_and_headers_of_each_request():
    # Given
    def answer(rows, context):
        assert context.request_ids == {0: "id-0", 1: "id-1"}
        assert context.metrics.request_ids == context.request_ids
        assert context.get_request_id(1) == "id-1"
        assert context.get_request_header(0, "body") == {"content-type": "text/plain"}
        assert context.get_request_header(1, "body") == "a client's"  # as in TorchServe
        return [context.get_request_header(index, "x-user") for index in range(len(rows))]

    first = body(b"", "text/plain", **{"X-User": "ann"})
    second = body(b"", "", **{"x-user": "bob", "X-User": "eve", "body": "a client's"})
    # When
    replies = runner(Handler(answer)).run(batch(first, second))
    # Then
    assert [reply.body for reply in replies] == [b"ann", b"bob"]


def test_status_phrase_and_headers_are_set_per_row():
    # Given
    def answer(rows, context):
        context.set_response_status(507, "No room", idx=1)
        context.set_response_content_type(0, "text/html")
        context.set_response_header(1, "x-n", 7)
        return ["a", "b"]

    # When
    first, second = runner(Handler(answer)).run(batch(body(), body()))
    # Then
    assert (first.status, first.phrase, first.headers) == (200, "", {"content-type": "text/html"})
    assert (second.status, second.phrase, second.headers) == (507, "No room", {"x-n": "7"})
    assert (second.body, second.error_type) == (b"b", "")


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b", "a\0", "\ud800"])
def test_header_that_would_break_the_response_fails_its_row(value):
    # Given
    def answer(rows, context):
        context.set_response_header(0, "x-echo", value)
        return ["a", "b"]

    # When
    first, second = runner(Handler(answer)).run(batch(body(), body()))
    # Then
    assert error_of(first) == (503, "InternalServerException", "Prediction failed")
    assert (second.status, second.body) == (200, b"b")


LEFT_IN_THE_CONTEXT = [
    "context.metrics = None",
    "context.metrics = {}",
    "del context.metrics",
    "context.metrics.request_ids = None",
    "context.request_processor = None",
    "context._request_processor = []",
    "context.request_processor[0] = None",
    "context.request_processor.clear()",
    "context.request_ids = None",
    "context.request_ids.clear()",
]


@pytest.mark.parametrize("change", LEFT_IN_THE_CONTEXT)
def test_what_a_handler_leaves_in_the_context_lasts_for_its_batch(change):
    # Given a handler that does so over its first batch, and then uses all of it
    def answer(rows, context):
        if rows[0]["body"] == b"change":
            exec(change)
            return ["changed"]
        context.metrics.add_counter("calls", 1)
        context.set_response_header(0, "x-id", context.get_request_id(0))
        return [context.get_request_header(0, "x-user")]

    changing = runner(Handler(answer))
    # When
    changing.run(batch(body(b"change")))
    (reply,) = changing.run(batch(body(b"", "", **{"x-user": "ann"})))
    # Then
    assert (reply.status, reply.body, reply.headers) == (200, b"ann", {"x-id": "id-0"})


def test_metrics_that_a_handler_replaces_while_it_loads_are_there_for_its_batches():
    context = Context("echo", "/", None, 8, None, "0.12.0")
    context.metrics = None
    handler = Handler(lambda rows, context: [context.metrics.model_name])
    (reply,) = runner_of(LoadedModel(handler, context)).run(batch(body()))
    assert reply.body == b"echo"


def raising(error):
    def answer(rows, context):
        raise error

    return answer


FAILURES = {
    "exception": (raising(KeyError("x")), (503, "Prediction failed")),
    "memory": (raising(MemoryError()), (507, "Out of resources")),
    "torch memory": (raising(torch.OutOfMemoryError("no words")), (507, "Out of resources")),
    "cuda": (raising(RuntimeError("CUDA error: x")), (507, "Out of resources")),
    "prediction": (raising(PredictionException("Too long", 413)), (413, "Too long")),
    "odd code": (raising(PredictionException("Teapot", 599)), (599, "Teapot")),
    "default code": (raising(PredictionException("Broken")), (500, "Broken")),
    "no code": (raising(PredictionException("Broken", "x")), (500, "Broken")),
    "no list": (lambda rows, context: "x", (503, "Invalid model predict output")),
    "none": (lambda rows, context: None, (503, "Invalid model predict output")),
    "too many": (lambda rows, context: [1, 2], (503, "number of batch response mismatched")),
    "too few": (lambda rows, context: [], (503, "number of batch response mismatched")),
    "object": (lambda rows, context: [object()], (503, "Unsupported model output data type.")),
    "surrogate": (lambda rows, context: ["\ud800"], (503, "Unsupported model output data type.")),
}


@pytest.mark.parametrize(("answer", "expected"), FAILURES.values(), ids=FAILURES)
def test_failure_is_answered_as_torchserve_does(answer, expected):
    # When
    reply = run_one(answer)
    # Then
    assert error_of(reply) == (expected[0], "InternalServerException", expected[1])
    assert reply.reason


def test_same_traceback_is_logged_in_one_line_for_a_while(caplog):
    # Given
    failing = runner(Handler(raising(KeyError("x"))))
    # When
    for _ in range(3):
        failing.run(batch(body()))
    failing.call._handle.answer = raising(ValueError("y"))
    failing.run(batch(body()))
    # Then
    lines = [(record.exc_info is not None, record.getMessage()) for record in caplog.records]
    assert [is_whole for is_whole, _ in lines] == [True, False, False, True]
    assert f" requests=id-0 error=KeyError at={__file__}:" in lines[1][1]


def test_oversized_answer_is_refused_alone():
    # Given
    answer = Handler(lambda rows, context: [b"x" * 11, b"x" * 10])
    # When
    big, small = runner(answer, max_response_size_bytes=10).run(batch(body(), body()))
    # Then
    assert error_of(big)[:2] == (500, "InternalServerException")
    assert b"11 bytes" in big.body
    assert small.body == b"x" * 10


def measures(rows, context):
    """A user's own handler, which opens images by itself."""
    return [str(Image.open(io.BytesIO(row["body"])).size) for row in rows]


def png(side):
    file = io.BytesIO()
    Image.new("L", (side, side)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("side", [12, 20], ids=["warned of by Pillow", "refused by Pillow"])
def test_b04_image_of_too_many_pixels_is_a_bad_request_in_any_handler(side, monkeypatch):
    # Given
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    # When
    large, good = runner(Handler(measures)).run(batch(body(png(side)), body(png(10))))
    # Then
    text = "Input is not a readable image: it has more than 100 pixels (max_image_pixels)."
    assert error_of(large) == (400, "InternalServerException", text)
    assert (good.status, good.body) == (200, b"(10, 10)")


def fails_on_bad(rows, context):
    if any(row["body"] == b"bad" for row in rows):
        raise PredictionException("Bad one", 400)
    return [f"{len(rows)} in {context.request_ids[0]}" for row in rows]


def test_bad_request_fails_alone_when_its_batch_fails(caplog):
    # Given
    handler = Handler(fails_on_bad)
    # When
    replies = runner(handler).run(batch(body(b"a"), body(b"bad"), body(b"c")))
    # Then
    assert [reply.status for reply in replies] == [200, 400, 200]
    assert [reply.body for reply in replies] == [b"1 in id-0", b"Bad one", b"1 in id-2"]
    assert [len(rows) for rows in handler.batches] == [3, 1, 1, 1]
    # And batching is not lost, as it was the request's fault
    assert not any(reply.timing.is_unbatched for reply in replies)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_body_that_a_handler_has_changed_comes_anew_when_its_batch_failed():
    # Given a handler that takes the bodies apart, as they are its own
    def answer(rows, context):
        taken = [row["body"].pop() for row in rows]
        rows[0]["body"].clear()
        return taken if len(rows) == 1 else None

    # When
    replies = runner(Handler(answer)).run(batch(body(b"xa"), body(b"xb")))
    # Then
    assert [reply.body for reply in replies] == [b"97", b"98"]


def broken_device():
    handler = Handler(raising(RuntimeError("CUDA error: device-side assert triggered")))
    return handler, runner(handler)


def test_broken_device_fails_no_batch_mates():
    # Given
    handler, broken = broken_device()
    # When / Then the batch is left to another process, which runs its items one by one
    with pytest.raises(DeviceBroken):
        broken.run(batch(body(), body()))
    assert len(handler.batches) == 1
    assert broken.is_device_broken


def test_broken_device_is_answered_when_the_request_was_alone():
    # Given
    _, broken = broken_device()
    # When
    (reply,) = broken.run(batch(body()))
    # Then
    assert (reply.status, broken.is_device_broken) == (507, True)


@pytest.mark.parametrize(
    ("text", "is_cuda", "is_broken"),
    [
        ("CUDA error: out of memory", False, False),
        ("CUDA out of memory.", False, False),
        ("x", False, False),
        ("CUDA error: invalid argument", True, False),
        ("cuDNN error: EXECUTION_FAILED", True, True),
    ],
)
def test_device_is_broken_when_it_fails_once_more(text, is_cuda, is_broken, monkeypatch):
    # Given
    def synchronize():
        if is_broken:
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr("torch.cuda.is_initialized", lambda: is_cuda)
    monkeypatch.setattr("torch.cuda.synchronize", synchronize)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    failing = runner(Handler(raising(RuntimeError(text))))
    # When
    failing.run(batch(body()))
    # Then
    assert failing.is_device_broken is is_broken


def test_explanations_and_descriptions_are_made_alone():
    # Given: a handler that goes by its first row, as TorchServe's do
    def answer(rows, context):
        kinds = [name for name in ("explain", "describe") if context.get_request_header(0, name)]
        return [f"{kinds} {len(rows)} {bytes(row['body']).decode()}" for row in rows]

    handler = Handler(answer)
    asked = [
        body(b"a"),
        body(b"b", explain="True"),
        body(b"c"),
        body(b"d", describe="True"),
        body(b"e", explain="True"),
    ]
    # When
    replies = runner(handler).run(batch(*asked))
    # Then
    assert [reply.body.decode() for reply in replies] == [
        "[] 2 a",
        "['explain'] 1 b",
        "[] 2 c",
        "['describe'] 1 d",
        "['explain'] 1 e",
    ]
    assert [len(rows) for rows in handler.batches] == [2, 1, 1, 1]


def mismatched(rows, context):
    if len(rows) > 1:
        raise RuntimeError("sizes differ:\n 3 and 4")
    return ["x"]


# What a handler that takes no batches does with several, and what is told of it.
UNBATCHED = {
    "one for all": (lambda rows, context: ["only one"], "it returned list of 1, not a list of 2"),
    "no list": (
        lambda rows, context: ["x"] if len(rows) == 1 else ("x", "y"),
        "it returned tuple, not a list of 2",
    ),
    "raises": (mismatched, "RuntimeError: sizes differ: 3 and 4"),
}


@pytest.mark.parametrize(("answer", "why"), UNBATCHED.values(), ids=UNBATCHED)
def test_handler_that_cannot_batch_is_served_one_by_one_and_that_is_told_once(answer, why, caplog):
    # Given
    losing = runner(Handler(answer))
    # When
    batches = [losing.run(batch(body(), body())) for _ in range(3)]
    (alone,) = losing.run(batch(body()))
    # Then
    replies = [reply for replies in batches for reply in replies]
    assert {(reply.status, reply.timing.is_unbatched) for reply in replies} == {(200, True)}
    assert not alone.timing.is_unbatched
    (told,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "model=echo cannot be run in batches" in told.getMessage()
    assert f"Why: {why}" in told.getMessage()


class Hostile(dict):
    def items(self):
        raise OSError("when encoded")


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("raised", "output"),
    [(None, Hostile(a=1)), (None, Unspeakable()), (Unspeakable(), None)],
    ids=["encoded", "given", "raised"],
)
def test_output_or_exception_that_explodes_fails_alone(raised, output):
    def answer(rows, context):
        are_bad = [row["body"] == b"bad" for row in rows]
        if raised is not None and any(are_bad):
            raise raised
        return [output if is_bad else "good" for is_bad in are_bad]

    # When
    replies = runner(Handler(answer)).run(batch(body(b"a"), body(b"bad"), body(b"c")))
    # Then
    assert [reply.status for reply in replies] == [200, 503, 200]


def test_replies_carry_the_batchs_timing():
    # Given
    def answer(rows, context):
        time.sleep(0.002)
        return ["x"] * len(rows)

    # When
    first, second = [reply.timing for reply in runner(Handler(answer)).run(batch(body(), body()))]
    # Then
    assert (first.batch_size, first.queue_us, first.is_first) == (2, 100, True)
    assert (second.batch_size, second.queue_us, second.is_first) == (2, 101, False)
    assert 2_000 <= first.handler_us == second.handler_us < 60_000_000
