"""One composed server for the whole run; each test leaves it as it found it."""

from typing import Any

import pytest

from tests.chaos.crowd import Crowd
from tests.compose.stack import BUILD_S, ROOT, MadeImages, Stack, engine_missing


@pytest.fixture(scope="session")
def stack(tmp_path_factory):
    """Redis, one ingress and one worker, built, started and healthy."""
    if reason := engine_missing():
        pytest.skip(reason)
    stack = Stack(tmp_path_factory.mktemp("compose"))
    try:
        stack.compose("up", "-d", "--build", timeout_s=BUILD_S)
        stack.wait_healthy()
        yield stack
    finally:
        stack.close()


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """All images, made by `make images`."""
    if reason := engine_missing():
        pytest.skip(reason)
    return MadeImages.make(tmp_path_factory.mktemp("images") / "repository")


@pytest.fixture
def crowd(stack):
    """Clients of the published inference port."""
    with Crowd(stack.port) as crowd:
        yield crowd


@pytest.fixture(scope="module")
def balanced(stack):
    """Two ingresses; the balancer has their ports."""
    before = stack.environment
    stack.environment = before | balanced_environment()
    stack.compose("up", "-d", "--scale", "ingress=2")
    stack.wait_healthy()
    yield stack
    stack.environment = before
    stack.restore()


def balanced_environment() -> dict[str, str]:
    text = (ROOT / "deploy" / "nginx" / "balanced.env").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A failure shows the ends of the containers' logs."""
    report = yield
    stack = getattr(item, "funcargs", {}).get("stack")
    if report.failed and isinstance(stack, Stack):
        report.sections.append(("logs of the containers", stack.logs()))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was measured, whether or not it was enough."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    for report in reports:
        if report.when == "call" and "tests/compose/" in report.nodeid:
            for name, value in report.user_properties:
                terminalreporter.write_line(f"compose: {name}: {value}")
