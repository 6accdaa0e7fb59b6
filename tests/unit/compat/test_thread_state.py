"""A handler's code runs in threads of ours with the context and modes of its own thread."""

import contextlib
import contextvars
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from ts.handler_utils.utils import with_own_state

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
