"""Pieces of answers from a handler: in order, split, held up by slow clients, or abandoned."""

import threading

import pytest
from ts.handler_utils.micro_batching import MicroBatching
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.torch_handler.base_handler import BaseHandler

from batching.protocol import Batch, ReplyChunk
from batching.store.redis_errors import RedisError
from batching.store.worker_queue import CHUNK_LIMIT_BYTES, ReplyCode
from tests.unit.workers.handling.batches import (
    Handler,
    as_job,
    batch,
    body,
    claimed,
    error_of,
    runner,
)
from workers.handling.handler_call import StreamAbandoned


class Queue:
    """What the store would take: every piece, unless told otherwise per call and request."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.pieces = {}
        self.calls = 0

    def send(self, items, chunks):
        self.calls += 1
        special = self.answers.pop(0) if self.answers else {}
        if isinstance(special, Exception):
            raise special
        codes = []
        for item, chunk in zip(items, chunks, strict=True):
            code = special.get(item.request_id, ReplyCode.STORED)
            if code is ReplyCode.STORED:
                self.pieces.setdefault(item.request_id, []).append(chunk)
            codes.append(code)
        return codes

    def text(self, request_id):
        return b"".join(chunk.body for chunk in self.pieces.get(request_id, ())).decode()


def sending(*pieces, last="end"):
    def answer(rows, context):
        for piece in pieces:
            context.send_pieces([piece] * len(rows), context.request_ids)
        return [last] * len(rows)

    return answer


def test_pieces_go_out_before_the_reply():
    # Given
    queue = Queue()

    def answer(rows, context):
        context.set_response_status(201, idx=1)
        context.set_response_header(1, "x-n", 7)
        context.send_pieces([b"a0", "b0"], context.request_ids)
        context.send_pieces([{"a": 1}, "b1"], context.request_ids)
        return ["a-end", ""]

    # When
    first, second = runner(Handler(answer), send=queue.send).run(batch(body(), body()))
    # Then
    assert queue.pieces["id-0"] == [ReplyChunk(0, b"a0"), ReplyChunk(1, b'{\n  "a": 1\n}')]
    assert queue.pieces["id-1"] == [
        ReplyChunk(0, b"b0", 201, {"x-n": "7"}),
        ReplyChunk(1, b"b1"),
    ]
    assert (first.body, first.chunks) == (b"a-end", 2)
    assert (second.body, second.chunks) == (b"", 2)


def test_piece_of_a_forked_process_is_refused_before_it_touches_the_connection(monkeypatch):
    # Given a handler that goes on in a process that it forked
    queue, refused = Queue(), []

    def answer(rows, context):
        monkeypatch.setattr("workers.handling.handler_call.os.getpid", lambda: 1)
        try:
            context.send_pieces(["a"], context.request_ids)
        except RuntimeError as error:
            refused.append(str(error))
        monkeypatch.undo()
        return ["end"]

    # When
    runner(Handler(answer), send=queue.send).run(batch(body()))
    # Then
    assert "worker's own process" in refused[0]
    assert queue.calls == 0


def test_large_piece_is_split():
    # Given
    queue = Queue()
    large = "x" * (2 * CHUNK_LIMIT_BYTES + 1)
    # When
    (reply,) = runner(Handler(sending(large)), send=queue.send).run(batch(body()))
    # Then
    sizes = [(chunk.index, len(chunk.body)) for chunk in queue.pieces["id-0"]]
    assert sizes == [(0, CHUNK_LIMIT_BYTES), (1, CHUNK_LIMIT_BYTES), (2, 1)]
    assert reply.chunks == 3


FULL = {"id-0": ReplyCode.FULL}
WAITED_FOR = {
    "slow client": ([{}, FULL, FULL, FULL], 5, "ab"),
    "Redis away": ([{}, RedisError("gone"), {"id-0": ReplyCode.STORED_BEFORE}], 3, "a"),
}


@pytest.mark.parametrize(("answers", "calls", "text"), WAITED_FOR.values(), ids=WAITED_FOR)
def test_handler_waits_until_its_piece_is_taken(answers, calls, text):
    # Given
    queue = Queue(*answers)
    # When
    (reply,) = runner(Handler(sending("a", "b")), send=queue.send).run(batch(body()))
    # Then
    assert (queue.calls, queue.text("id-0")) == (calls, text)
    assert (reply.status, reply.body, reply.chunks) == (200, b"end", 2)


def test_answer_ends_broken_when_its_client_takes_nothing_for_long():
    # Given
    queue = Queue(*[{"id-0": ReplyCode.FULL}] * 1000)
    # When
    impatient = runner(Handler(sending("a", "b")), send=queue.send, stall_s=0.05)
    slow, other = impatient.run(batch(body(), body()))
    # Then: and the other client is served
    assert slow.error_type
    assert (other.body, other.chunks) == (b"end", 2)
    assert queue.text("id-1") == "ab"


def test_handler_is_stopped_when_no_client_is_left():
    # Given
    gone = {"id-0": ReplyCode.UNWANTED, "id-1": ReplyCode.STALE}
    queue = Queue({}, gone)
    handler = Handler(sending("a", "b", "c"))
    # When
    replies = runner(handler, send=queue.send).run(batch(body(), body()))
    # Then: no client sees these, and nothing is run again
    assert all(reply.error_type for reply in replies)
    assert queue.calls == 2
    assert len(handler.batches) == 1


def test_batch_that_has_sent_pieces_is_not_run_again():
    # Given
    def answer(rows, context):
        context.send_pieces(["x"] * len(rows), context.request_ids)
        raise ValueError("half way")

    handler, queue = Handler(answer), Queue()
    # When
    replies = runner(handler, send=queue.send).run(batch(body(), body()))
    # Then
    assert len(handler.batches) == 1
    for reply in replies:
        assert error_of(reply) == (503, "InternalServerException", "Prediction failed")
        assert reply.chunks == 1


@pytest.mark.parametrize("pieces", ["text", [], ["one"], {0: "one", "1": "two"}, None])
def test_pieces_of_the_wrong_shape_are_the_handlers_error(pieces):
    def answer(rows, context):
        with pytest.raises(ValueError, match="for each of the 2 requests"):
            context.send_pieces(pieces, context.request_ids)
        return ["x"] * len(rows)

    # When
    replies = runner(Handler(answer)).run(batch(body(), body()))
    # Then
    assert [(reply.body, reply.timing.is_unbatched) for reply in replies] == [(b"x", False)] * 2


def test_piece_of_an_answered_batch_reaches_no_client_of_the_next():
    # Given a handler that returns while a thread of it waits for a slow client
    asked, is_next, threads = [], threading.Event(), []
    is_waiting = threading.Event()

    def send(items, chunks):
        asked.extend(owned.request_id for owned in items)
        is_waiting.set()
        is_answered = is_next.is_set()
        return [ReplyCode.UNWANTED if is_answered else ReplyCode.FULL] * len(items)

    def send_late(context, request_ids):
        with pytest.raises(StreamAbandoned):
            context.send_pieces(["for the first"], request_ids)

    def answer(rows, context):
        if threads:
            is_next.set()
            threads[0].join(5.0)
        else:
            thread = threading.Thread(target=send_late, args=(context, context.request_ids))
            threads.append(thread)
            thread.start()
            assert is_waiting.wait(5.0)
        return ["end"]

    worker = runner(Handler(answer), send=send)
    # When
    worker.run(Batch([claimed("first", body())]))
    worker.run(Batch([claimed("second", body())]))
    # Then
    assert set(asked) == {"first"}


def test_pieces_go_to_the_requests_that_are_named():
    # Given
    queue = Queue()

    def answer(rows, context):
        context.set_response_header(2, "x-n", 2)
        context.send_pieces(["c", "of no row"], {0: context.request_ids[2]})
        context.send_pieces({0: "a", 7: "of no row"}, {0: context.request_ids[0]})
        return ["end"] * len(rows)

    # When
    replies = runner(Handler(answer), send=queue.send).run(batch(body(), body(), body()))
    # Then
    assert queue.pieces == {
        "id-2": [ReplyChunk(0, b"c", 200, {"x-n": "2"})],
        "id-0": [ReplyChunk(0, b"a")],
    }
    assert [reply.chunks for reply in replies] == [1, 0, 1]


def test_parts_of_a_batch_stream_in_threads_of_their_own():
    # Given two at a time, which meet before each piece
    queue, meeting = Queue(), threading.Barrier(2, timeout=5)

    class Streaming(BaseHandler):
        def preprocess(self, rows):
            return len(rows)

        def inference(self, count):
            ids, first = self.context.request_ids, 2 * self.parts.get_micro_batch_idx()
            mine = {index: ids[first + index] for index in range(count)}
            for word in "xyz":
                meeting.wait()
                pieces = [f"{word}{first + index}" for index in range(count)]
                send_intermediate_predict_response(pieces, mine, "", 200, self.context)
            return ["."] * count

        def postprocess(self, rows):
            return rows

    handler = Streaming()
    handler.parts = MicroBatching(handler, 2, {"inference": 2})
    # When
    replies = runner(Handler(handler.parts), send=queue.send).run(batch(*[body()] * 4))
    # Then
    handler.parts.shutdown()
    assert [(reply.body, reply.chunks) for reply in replies] == [(b".", 3)] * 4
    assert [queue.text(f"id-{index}") for index in range(4)] == [
        f"x{index}y{index}z{index}" for index in range(4)
    ]


def test_pieces_of_a_job_that_ran_in_vain_are_not_in_its_answer():
    # Given a handler that fails over two jobs, after a piece, and not over one
    def answer(rows, context):
        context.send_pieces(["piece"] * len(rows), context.request_ids)
        if len(rows) > 1:
            raise ValueError
        return ["end"]

    running = runner(Handler(answer), send=Queue().send, again=list)
    jobs = [as_job(item) for item in batch(body(), body()).items]
    # When / Then
    assert [reply.body for reply in running.run(Batch(jobs))] == [b"pieceend"] * 2
