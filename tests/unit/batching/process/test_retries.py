from batching.process.retries import DELAYS_S, Backoff


def test_backoff_retries_at_once_first_and_never_waits_longer_than_half_a_minute():
    backoff = Backoff()
    delays = []
    for n in range(12):
        backoff.fail(float(n))
        delays.append(backoff.delay_s)
    assert delays[0] == 0.0
    assert delays == sorted(delays)
    assert delays[-1] == max(DELAYS_S) == 30.0


def test_backoff_counts_and_measures_from_the_first_failure_of_an_episode():
    backoff = Backoff()
    assert not backoff.has_failed_for(300, 1e9)
    backoff.fail(100.0)
    assert not backoff.is_doubtful
    backoff.fail(350.0)
    assert backoff.is_doubtful
    assert not backoff.has_failed_for(300, 399.0)
    assert backoff.has_failed_for(300, 401.0)
    backoff.succeed()
    assert not backoff.is_doubtful
    backoff.fail(500.0)
    assert not backoff.has_failed_for(300, 600.0)
