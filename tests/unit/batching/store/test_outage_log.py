"""What the log says while Redis is away: little, and enough."""

import logging

import pytest
import redis

from batching import errors
from batching.store.broker import Broker
from batching.store.redis_errors import AGAIN_S, REMIND_S, OutageLog
from tests.support import (
    SimulatedClock,
    make_outage,
    make_spec,
    wire_of,
)

URL = "redis://user:secret@far:6379/2"
REFUSED = redis.ConnectionError("Error 111 connecting to far:6379.")


@pytest.fixture
def clock():
    return SimulatedClock(1000.0)


@pytest.fixture
def outage(clock):
    return OutageLog(logging.getLogger("here"), URL, clock=clock)


def test_outage_is_told_of_once_then_now_and_then_and_when_it_is_over(outage, clock, caplog):
    # When Redis is away for 70 seconds
    for _ in range(700):
        outage.note("claim", REFUSED)
        clock.now_s += 0.1
    outage.over("beat", is_for_all=True)
    outage.over("beat", is_for_all=True)
    # Then
    where = "redis=redis://far:6379/2"
    assert caplog.messages == [
        *(
            f"Redis does not answer {where} verb=claim away_s={away_s}: {REFUSED}"
            for away_s in (0, int(REMIND_S), int(2 * REMIND_S))
        ),
        f"Redis answers again {where} away_s=70.0",
    ]


def test_redis_that_comes_and_goes_is_not_told_of_each_time(outage, clock, caplog):
    # When it does so ten times a second for a while
    for _ in range(100):
        outage.note("claim", REFUSED)
        outage.over("beat", is_for_all=True)
        clock.now_s += AGAIN_S / 50
    # Then
    assert len(caplog.messages) <= 2 * 3


def test_second_outage_is_told_of_when_redis_has_answered_for_a_while(outage, clock, caplog):
    for _ in range(2):
        outage.note("claim", REFUSED)
        outage.over("beat", is_for_all=True)
        clock.now_s += AGAIN_S
    assert len(caplog.messages) == 4


def test_outage_is_over_when_every_call_that_failed_has_succeeded(outage, caplog):
    # Given
    outage.note("listen", REFUSED)
    outage.note("submit", REFUSED)
    # When / Then
    outage.over("submit")
    assert len(caplog.messages) == 1
    outage.over("listen")
    assert "answers again" in caplog.messages[-1]


def test_what_a_user_may_not_ask_is_not_over_while_all_else_goes_on(outage, clock, caplog):
    # When a channel is forbidden, and each beat succeeds
    for _ in range(50):
        outage.note("listen", redis.exceptions.NoPermissionError("No permissions: channel"))
        outage.over("beat", is_for_all=True)
        clock.now_s += 0.5
    # Then
    [message] = caplog.messages
    assert message.startswith("Redis refuses this user or password")
    # When it is allowed, so that nothing fails any more
    clock.now_s += AGAIN_S
    outage.over("beat", is_for_all=True)
    # Then
    assert caplog.messages[1].startswith("Redis answers again")


def test_server_that_comes_back_with_another_password_is_told_of_at_once(outage, caplog):
    # When
    for error in (REFUSED, redis.AuthenticationError("invalid password")) * 5:
        outage.note("claim", error)
    # Then
    away, refused = caplog.messages
    assert away.startswith("Redis does not answer ")
    assert refused.startswith("Redis refuses this user or password ")


async def test_ingress_says_that_redis_refuses_its_password(real_backend, caplog):
    # Given
    url = real_backend.url.replace("unix://", "unix://user:secret@")

    broker = Broker(url, make_outage(url))
    # When
    with pytest.raises(errors.StoreUnavailable):
        await broker.predict(make_spec(), wire_of("x"), request_id="a")
    await broker.close()
    # Then
    [message] = caplog.messages
    assert message.startswith(f"Redis refuses this user or password redis={real_backend.url}")
    assert "secret" not in message
