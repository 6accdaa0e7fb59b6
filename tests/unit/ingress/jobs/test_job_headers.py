"""What a request says about its job."""

import pytest

from batching.errors import BadRequest
from batching.store.jobs.job_records import Receiver
from batching.webhooks import ReceiverRules
from ingress.jobs.job_service import (
    NO_PREFERENCES,
    Preferences,
    preferences_of,
    read_idempotency_key,
    read_keep_s,
    read_preferences,
    read_receiver,
    read_urgency,
)

URL = "https://receiver.example/"
BASE = "http://server"
RULES = ReceiverRules()


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("respond-async", Preferences(is_async=True)),
        ("respond-async, wait=5", Preferences(is_async=True, wait_s=5)),
        ("wait=5 , Respond-Async", Preferences(is_async=True, wait_s=5)),
        ('respond-async, wait="5"', Preferences(is_async=True, wait_s=5)),
        ("respond-async; a=1, wait=5; b", Preferences(is_async=True, wait_s=5)),
        ("respond-async, wait=5, wait=9", Preferences(is_async=True, wait_s=5)),
        ("respond-async, wait=100000", Preferences(is_async=True, wait_s=60)),
        ("respond-async, wait=-5", Preferences(is_async=True)),
        ("respond-async, wait=1e1", Preferences(is_async=True)),
        ("respond-async, wait=٣", Preferences(is_async=True)),
        ("return=minimal, handling=lenient", NO_PREFERENCES),
        ("respond-asynchronously", NO_PREFERENCES),
        (", ;=,,", NO_PREFERENCES),
        ("", NO_PREFERENCES),
        ("x" * 100_000, NO_PREFERENCES),
        ('a="' + "\\" * 100_000, NO_PREFERENCES),
    ],
)
def test_preferences_are_read_as_rfc_7240_says(header, expected):
    assert read_preferences(header) == expected


@pytest.mark.parametrize(
    ("accept", "is_async"),
    [
        (None, True),
        ("*/*", True),
        ("image/png, application/JSON;q=0.5", True),
        ("application/*", True),
        ("image/png", False),
        ("application/jsonp", False),
    ],
)
def test_model_that_gives_jobs_gives_them_to_those_who_read_json(accept, is_async):
    headers = {} if accept is None else {"accept": accept}
    found = preferences_of(headers, 50)
    assert found == (
        Preferences(is_async=True, wait_s=50, is_asked=False) if is_async else NO_PREFERENCES
    )
    assert preferences_of(headers, 0) == NO_PREFERENCES
    asked = {**headers, "prefer": "respond-async, wait=1"}
    assert preferences_of(asked, 50) == Preferences(is_async=True, wait_s=1)


def test_key_has_two_spellings():
    assert read_idempotency_key({"idempotency-key": ' "abc" '}) == "abc"
    assert read_idempotency_key({"idempotency-key": "abc"}) == "abc"
    assert read_idempotency_key({"idempotency-key": "x" * 255}) == "x" * 255
    assert read_idempotency_key({}) == ""


@pytest.mark.parametrize("key", ["", '""', " ", "a b", "é", "x" * 256, "a\tb"])
def test_key_that_is_none_is_refused(key):
    with pytest.raises(BadRequest, match="1 to 255 printable"):
        read_idempotency_key({"idempotency-key": key})


@pytest.mark.parametrize("text", ["", "59", "604801", "60.0", "-60", "1e3", "9" * 100])
def test_time_of_keeping_outside_of_its_range_is_refused(text):
    with pytest.raises(BadRequest, match="60 to 604800"):
        read_keep_s({"x-result-ttl-s": text})
    assert read_keep_s({"x-result-ttl-s": "60"}) == 60
    assert read_keep_s({}) is None


def test_priority_is_high_or_normal():
    assert read_urgency({"x-priority": "HIGH"})
    assert not read_urgency({"x-priority": "normal"})
    assert not read_urgency({})
    with pytest.raises(BadRequest, match="high or normal"):
        read_urgency({"x-priority": "low"})


@pytest.mark.parametrize(
    ("headers", "receiver"),
    [
        ({}, None),
        ({"webhook-events": "never"}, None),
        ({"webhook-url": URL}, Receiver(URL, BASE)),
        ({"webhook-url": URL, "webhook-events": "completed"}, Receiver(URL, BASE)),
        (
            {"webhook-url": URL, "webhook-events": " started , completed "},
            Receiver(URL, BASE, is_start_told=True),
        ),
        (
            {"webhook-url": URL, "webhook-include": "result"},
            Receiver(URL, BASE, is_result_told=True),
        ),
    ],
)
def test_receiver_is_read(headers, receiver):
    assert read_receiver(headers, BASE, RULES) == receiver


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"webhook-events": "started"}, "Webhook-Events must be completed, or"),
        ({"webhook-events": ""}, "Webhook-Events must be completed, or"),
        (
            {"webhook-events": "completed,"},
            "Webhook-Events must be completed, or",
        ),
        ({"webhook-include": "input"}, "Webhook-Include must be result, if it is there."),
        ({"webhook-url": "http://receiver.example/"}, "Webhook-Url must be an https:// URL; this"),
        ({"webhook-url": "https://x:99999/"}, "Webhook-Url must be an https:// URL of a host"),
        ({"webhook-url": "https://10.0.0.1/"}, "Webhook-Url must be the URL of a public host"),
        ({"webhook-url": " "}, "Webhook-Url must be a URL of 2000 printable"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_it_should_be(headers, words):
    with pytest.raises(BadRequest) as refusal:
        read_receiver({"webhook-url": URL} | headers, BASE, RULES)
    assert refusal.value.message.startswith(words)


def test_server_without_secrets_says_who_can_change_that():
    with pytest.raises(BadRequest, match="its operator has to set webhook_secrets"):
        read_receiver({"webhook-url": URL}, BASE, None)
