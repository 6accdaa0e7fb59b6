"""A handler's code runs in threads of ours with the context and modes of its own thread."""

import contextlib
import contextvars
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torchvision import transforms
from ts.handler_utils.utils import with_own_state
from ts.torch_handler.vision_handler import VisionHandler

from tests.unit.models import picture

OWN = contextvars.ContextVar("own", default="")


@contextlib.contextmanager
def own_variable():
    token = OWN.set("mine")
    yield
    OWN.reset(token)


def state():
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_num_threads(),
        OWN.get(),
    )


@pytest.fixture
def two_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    "setting",
    [contextlib.nullcontext, torch.no_grad, torch.inference_mode, own_variable],
    ids=["gradients", "no gradients", "inference", "context variable"],
)
def test_thread_has_the_state_of_the_thread_that_asks_until_another_asks(setting, pool):
    # Given a thread that has computed on one core, as one that decodes
    plain = state()
    pool.submit(with_own_state(state, cores=1)).result()

    # When
    with setting():
        expected = state()
        seen = pool.submit(with_own_state(state)).result()
    after = pool.submit(with_own_state(state)).result()

    # Then
    assert (seen, after) == (expected, plain)
    assert expected[2] == 2


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


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
