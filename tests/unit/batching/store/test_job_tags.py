"""The keys that jobs are found by are in few slots, each of which costs an ingress a connection."""

import secrets

from batching.store.keys import idempotency_key, job_version, tag_of


def test_names_of_jobs_are_in_sixteen_slots():
    names = [secrets.token_hex(16) for _ in range(2000)]
    tags = {tag_of(key(name)) for key in (idempotency_key, job_version) for name in names}
    assert len(tags) == 16
