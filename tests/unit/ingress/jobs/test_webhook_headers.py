"""Whom a job's client wants to be told, and of what."""

import pytest

from batching.errors import BadRequest
from batching.store.jobs.webhook_records import Receiver
from batching.webhooks import ReceiverRules
from ingress.jobs.webhook_headers import read_receiver

URL = "https://receiver.example/"
BASE = "http://server"
RULES = ReceiverRules()


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
        ({"webhook-url": "https://[/"}, "Webhook-Url must be an https:// URL of a host"),
        ({"webhook-url": "https://./"}, "Webhook-Url must be an https:// URL of a host"),
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
