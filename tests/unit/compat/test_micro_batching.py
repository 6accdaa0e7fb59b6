"""A batch in parts, which go through the steps of a handler in threads."""

import threading

import pytest
from ts.context import Context, RequestProcessor
from ts.handler_utils.micro_batching import MicroBatching
from ts.service import PredictionException
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.unit_tests.test_utils.mock_context import MockContext


class Steps(BaseHandler):
    """Its steps meet in the middle: two parts must be under way at the same time."""

    def __init__(self):
        super().__init__()
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


class Plain(BaseHandler):
    """Whole rows in, whole rows out; explains and describes itself."""

    def __init__(self):
        super().__init__()
        self.handle = MicroBatching(self)

    def preprocess(self, rows):
        return rows

    inference = postprocess = preprocess

    def explain_handle(self, preprocessed, rows):
        return [f"why {row}" for row in rows]

    def describe_handle(self):
        return {"input": "x"}


@pytest.fixture
def plain():
    handler = Plain()
    yield handler
    handler.handle.shutdown()


def context_with(headers):
    context = Context("m", ".", {"model": {}}, 4, None, "0.12")
    context.request_processor = [RequestProcessor(headers)]
    return context


def test_micro_batches_overlap_and_keep_their_order():
    # Given
    steps = Steps()
    steps.batching = MicroBatching(steps, micro_batch_size=2)

    # When
    output = steps.batching(list("abcde"), MockContext())

    # Then
    assert output == list("ABCDE")
    assert steps.seen == [0, 1, 2]
    assert steps.batching.get_micro_batch_idx() is None
    steps.batching.shutdown()


def test_micro_batch_error_reaches_the_caller_and_steps_keep_their_threads():
    # Given
    steps = Steps()
    steps.batching = MicroBatching(steps)
    steps.batching.parallelism = {"preprocess": 2}
    steps.batching.parallelism = {"inference": 2}

    # When / Then
    with pytest.raises(PredictionException, match="no x"):
        steps.batching(list("xy"), MockContext())
    assert steps.batching.parallelism == {"preprocess": 2, "inference": 2, "postprocess": 1}
    with pytest.raises(ValueError, match="parallelism knows"):
        steps.batching.parallelism = {"other": 1}
    steps.batching.shutdown()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, ["a", "b"]),
        ({"explain": "True"}, ["why a", "why b"]),
        ({"describe": "True"}, [{"input": "x"}]),
    ],
)
def test_micro_batching_answers_what_the_request_asks_for(plain, headers, expected):
    # Given
    context = context_with(headers)

    # When / Then
    assert plain.handle(["a", "b"], context) == expected
    assert "HandlerTime" in [name for name, _ in context.metrics.cache]


def test_micro_batching_leaves_no_part_behind_when_one_fails(plain):
    # Given
    has_left, ran_after = threading.Event(), []

    def preprocess(rows):
        if rows == ["bad"]:
            raise PredictionException("bad", 400)
        return rows

    def postprocess(rows):
        ran_after.append(has_left.wait(timeout=0.2))
        return rows

    plain.preprocess, plain.postprocess = preprocess, postprocess

    # When
    with pytest.raises(PredictionException, match="bad"):
        plain.handle(["bad", "b"], context_with({}))
    has_left.set()
    plain.handle.shutdown()

    # Then
    assert ran_after == [False]
