from batching.protocol import Batch
from batching.store.ingress_queue import AuditCode
from tests.support import items_of, make_reply


def test_audit_keeps_the_ingress_alive(harness):
    # Given
    harness.submit("a", ingress_id="ingress-a")
    harness.silence_ingress("ingress-a")

    # When
    codes = harness.ingress("ingress-a").audit([])

    # Then
    assert codes == []
    assert isinstance(harness.worker().claim(1, 0.0), Batch)


def test_audit_finds_what_is_left_of_a_version_that_is_not_registered_any_more(harness):
    # Given one that was unregistered while its worker had a batch
    worker = harness.worker()
    harness.submit("replied", "leased", "queued")
    worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])
    worker.claim(1, 0.0)
    harness.client.delete(harness.keys.config)
    names = ["replied", "leased", "queued", "lost"]

    # When the worker is silent
    before = harness.ingress().audit(names)
    harness.silence_worker()

    # Then
    assert before == [AuditCode.REPLIED, AuditCode.OPEN, AuditCode.OPEN, AuditCode.LOST]
    abandoned = AuditCode.ABANDONED
    assert harness.ingress().audit(names) == [
        AuditCode.REPLIED,
        abandoned,
        abandoned,
        AuditCode.LOST,
    ]

    # And what is registered has a node that takes it back
    harness.client.hset(harness.keys.config, "max_queue", 8)
    assert harness.ingress().audit(names) == before
