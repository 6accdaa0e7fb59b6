"""Containers of one host give each other large bodies in the memory that they share."""

import pytest

from tests.support import came_true

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

BODY = "b" * 100_000


@pytest.fixture
def echo(stack):
    stack.serve("large-echo")
    yield "large-echo"
    stack.restore()


def test_large_bodies_go_by_the_volume_in_memory(stack, echo):
    def answers() -> bool:
        url = f"http://127.0.0.1:{stack.port}/predictions/{echo}"
        return bool(stack.http.post(url, data=BODY, timeout=30).text == BODY)

    def by_memory(kind: str) -> float:
        (ingress,) = stack.containers("ingress")
        text = stack.http.get(f"http://127.0.0.1:{ingress.port(8082)}/metrics", timeout=10).text
        name = f'ferry_{kind}_bodies_total{{way="arena"'
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    # When the ingress has found out who works
    assert came_true(lambda: answers() and by_memory("request") > 0, 30)

    # Then answers come by memory, too, and each is right
    before = by_memory("answer")
    assert all(answers() for _ in range(20))
    assert by_memory("answer") == before + 20
