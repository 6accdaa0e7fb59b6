"""F42: bodies and answers that share connections and buffers with those of clients that leave."""

import random
from collections import Counter
from pathlib import Path

import pytest
import uvloop

from tests.chaos import checker
from tests.chaos.patterned_clients import Plan, visits
from tests.chaos.promises import is_long
from tests.chaos.rig import Rig
from tests.support import came_true

HERE = Path(__file__).parent
FILES = {
    "handler.py": (HERE / "patterned_handler.py").read_text(encoding="utf-8"),
    "patterns.py": (HERE / "patterns.py").read_text(encoding="utf-8"),
}
CLIENTS = 32

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@pytest.mark.timeout(1800)
def test_f42_no_request_sees_a_byte_of_another_one(rig: Rig, record_promise) -> None:
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
        runs = Counter(name for model in models for name in ran(model.ledger.path))
        wrong = [Path(f"{model.ledger.path}.wrong") for model in models]
        assert [path.read_text() for path in wrong if path.exists()] == []
        assert [name for name in found.names if runs[name] != 1] == []
        assert max(runs.values()) == 1
        for model in models:
            assert checker.conservation(model.counters(), 0) == []
        assert "Traceback" not in rig.process.log()


def ran(ledger: Path) -> list[str]:
    """Returns the names of the requests that were run, as often as they were."""
    return ledger.read_text(encoding="utf-8").split()
