from batching.store.ingress_queue import CancelCode, Submission
from tests.support import wire_of


def test_cancel_drops_the_requests_large_body(harness):
    # Given
    harness.ingress().submit([Submission("a", 60_000, wire_of("a", size=100_000))])

    # When
    harness.ingress().cancel(["a"])

    # Then
    assert not harness.has_body("a")


def test_cancel_goes_on_when_memory_is_full(real_harness, full_memory):
    # Given
    real_harness.submit("a", "b")
    real_harness.worker().claim(1, 0.0)
    full_memory()

    # When
    codes = real_harness.ingress().cancel(["a", "b"])

    # Then
    assert codes == [CancelCode.CANCELLED, CancelCode.CANCELLED]
    assert real_harness.unaccounted() == 0
