"""F42: bodies and answers that share connections and buffers with those of clients that leave."""

import random
from collections import Counter

import pytest
import uvloop

from tests.chaos import checker
from tests.chaos.patterned_clients import visits
from tests.chaos.patterned_requests import FILES, Plan, ran, wrong
from tests.chaos.promises import is_long
from tests.support import came_true

CLIENTS = 32

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@pytest.mark.timeout(1800)
def test_f42_no_request_sees_a_byte_of_another_one(rig, record_promise):
    count = 200_000 if is_long() else 5_000
    seed = random.randrange(2**32)
    options = {"files": FILES, "workers": 2, "batch_size": 8, "max_batch_delay": 2}
    with (
        rig.serve("f42", **options) as whole,
        rig.serve("f42-pieces", **{**options, "files": {**FILES, "streamed": ""}}) as streamed,
    ):
        # When clients leave in the middle of bodies, waits and answers, beside others
        plan = Plan(models=("f42",) * 19 + ("f42-pieces",))
        found = uvloop.run(
            visits(rig.port, plan, seed, clients=CLIENTS, until=lambda found: found.sent >= count)
        )

        # Then each of the others has its own answer, to the byte
        record_promise(
            "F42",
            f"{found.sent:,} requests, {found.aborted:,} left: {found.answered:,} right, "
            f"{len(found.faults)} wrong",
        )
        assert found.faults == [], f"seed {seed}"
        assert found.answered + found.aborted == found.sent

        # And no handler has seen a body that was not whole, or one twice
        models = (whole, streamed)
        assert came_true(lambda: not any(model.open_requests() for model in models), 20)
        assert [wrong(model.ledger.path) for model in models] == ["", ""]
        runs = Counter(name for model in models for name in ran(model.ledger.path))
        assert [name for name in found.names if runs[name] != 1] == []
        assert max(runs.values()) == 1
        for model in models:
            assert checker.conservation(model.counters(), 0) == []
        assert "Traceback" not in rig.process.log()
