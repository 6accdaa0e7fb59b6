"""Batches for handlers in tests."""

from msgspec.structs import replace
from ts.context import Context

from batching.protocol import JOB, Batch, Claimed, Owned, Part, Request
from batching.settings.settings import Settings
from tests.support import make_outage
from workers.handling.handler_call import BatchStream, HandlerCall
from workers.handling.handlers import LoadedModel
from workers.handling.runner import Runner
from workers.slots.assignment import Deadline

# What the queue would have of the requests of the last batch, by id.
WIRES = {}


class Handler:
    """Remembers the batches that it was given; `answer(rows, context)` is what it does."""

    def __init__(self, answer):
        self.answer = answer
        self.batches = []

    def __call__(self, rows, context):
        self.batches.append(rows)
        return self.answer(rows, context)


def runner(handler, **options):
    return runner_of(LoadedModel(handler, Context("echo", "/", None, 8, None, "0.12.0")), **options)


def no_pieces(_items, _chunks):
    raise AssertionError("nobody takes pieces here")


def runner_of(model, *, send=no_pieces, stall_s=5.0, again=None, **settings):
    chosen, deadline = Settings(**settings), Deadline()
    call = HandlerCall(model, chosen)
    stream = BatchStream(call, send, deadline, make_outage(), stall_s)
    return Runner(call, stream, deadline, again or read_again, chosen.max_response_size_bytes)


def body(content=b"", content_type="", **headers):
    return Request(headers, [Part("body", content_type, content)])


def claimed(request_id, request, *, queue_us=0):
    WIRES[request_id] = request.encode()
    return Claimed(Owned(request_id, 1, "ingress-a"), queue_us, read(request_id))


def read(request_id):
    return Request.decode(WIRES[request_id])


def read_again(items):
    """The items as they were claimed."""
    return [replace(item, request=read(item.request_id)) for item in items]


def batch(*requests):
    return Batch(
        [
            claimed(f"id-{index}", request, queue_us=100 + index)
            for index, request in enumerate(requests)
        ]
    )


def as_job(item):
    return replace(item, owned=replace(item.owned, ingress_id=JOB))


def run_one(answer, request=None, **settings):
    (reply,) = runner(Handler(answer), **settings).run(batch(request or body()))
    return reply


def error_of(reply):
    return reply.status, reply.error_type, reply.body.decode()
