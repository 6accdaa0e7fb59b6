"""A handler's code runs in threads of ours with the settings of torch of its own thread."""

import contextlib
import contextvars
import threading

import pytest
import torch
from torchvision import transforms
from ts.context import Context, RequestProcessor
from ts.handler_utils.micro_batching import MicroBatching
from ts.torch_handler.acceleration.preparation import DataParallel
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.vision_handler import VisionHandler

from tests.unit.models import picture

OWN = contextvars.ContextVar("own", default="")


@contextlib.contextmanager
def own_variable():
    token = OWN.set("mine")
    yield
    OWN.reset(token)


@contextlib.contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


SETTINGS = {
    "gradients": contextlib.nullcontext,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "autocast of a GPU": lambda: torch.autocast("mps", torch.float16),
    "default dtype": default_dtype,
    "default device": default_device,
    "device as a context": lambda: torch.device("meta"),
    "context variable": own_variable,
}


def state():
    return {
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": [
            torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
            for kind in ("cpu", "mps")
        ],
        "is caching": torch.is_autocast_cache_enabled(),
        "dtype": torch.zeros(1).dtype,
        "device": torch.zeros(1).device.type,
        "variable": OWN.get(),
    }


class Pictures:
    """Reads two pictures, each in a thread that decodes."""

    def __init__(self, note):
        def processing(image):
            note()
            return transforms.functional.pil_to_tensor(image)

        class Noting(VisionHandler):
            image_processing = staticmethod(processing)

        self.handler = Noting()
        self.handler.device = torch.device("meta")

    def run(self):
        self.handler.preprocess([{"data": picture()}] * 2)


class Parts:
    """Runs a step over two parts of a batch."""

    def __init__(self, note):
        class Noting(BaseHandler):
            def preprocess(self, rows):
                return rows

            def inference(self, rows):
                note()
                return rows

            def postprocess(self, rows):
                return rows

        self.handler = Noting()
        self.handler.handle = MicroBatching(self.handler)

    def run(self):
        context = Context("m", ".", {"model": {}}, 4, None, "0.12")
        context.request_processor = [RequestProcessor({})]
        self.handler.handle(["a", "b"], context)


def noted_in_threads(kind):
    """Returns a door of this kind, and what its threads' state was at each step."""
    seen = []

    def note():
        assert threading.current_thread() is not threading.main_thread()
        seen.append(state())

    return kind(note), seen


@pytest.mark.parametrize("kind", [Pictures, Parts])
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_threads_have_the_state_of_the_thread_that_asks(kind, setting):
    # Given threads that have run before, without the setting
    door, seen = noted_in_threads(kind)
    door.run()
    plain = state()

    # When
    with setting():
        expected = state()
        door.run()
    door.run()

    # Then
    assert seen == [plain] * 2 + [expected] * 2 + [plain] * 2


def test_rows_are_computed_under_the_autocast_of_the_thread_that_asks():
    # Given
    network = torch.nn.Linear(3, 2)

    # When
    with torch.autocast("cpu", torch.bfloat16):
        answer = DataParallel(network, 2)(torch.ones(4, 3))

    # Then
    assert answer.dtype == torch.bfloat16


def test_batch_of_a_handler_without_gradients_reads_its_pictures_through_a_network():
    # Given: a network that answers with numbers, as `set_grad_enabled` at import allows
    network = torch.nn.Conv2d(3, 3, 1)

    class Networked(VisionHandler):
        @staticmethod
        def image_processing(image):
            return torch.from_numpy(network(transforms.functional.to_tensor(image)).numpy())

    handler = Networked()
    handler.device = torch.device("cpu")
    torch.set_grad_enabled(False)

    # When / Then
    try:
        assert handler.preprocess([{"data": picture()}] * 3).shape[0] == 3
    finally:
        torch.set_grad_enabled(True)
