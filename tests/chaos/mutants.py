"""Switches each safety mechanism off, one line at a time, and shows that a test notices.

Usage: python -m tests.chaos.mutants [WORD ...]   only mechanisms with one of these words in them

Works on a copy of the tree. A mechanism whose test still passes without it is a mechanism that
no one would miss: then this command fails.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[2]
PACKAGES = ("batching", "ingress", "workers", "ferry", "compat", "tests", "pyproject.toml")
CHAOS = "tests/chaos/test_chaos_"
OWN_ANSWERS = "tests/unit/ingress/predictions/test_own_answers.py"
RECEIVER = "request = self._waiting.get(request_id)\n            if request is None:\n"
ANY_RECEIVER = RECEIVER.replace("\n", " or next(iter(self._waiting.values()), None)\n", 1)
MACHINE = f"{CHAOS}machine.py::test_f40_queue_does_what_its_model_says"
JOB_MACHINE = f"{CHAOS}machine.py::test_f40_jobs_do_what_their_model_says"
GENERATIONS = "tests/unit/batching/store/test_arena_generations.py"
JOBS = "tests/unit/batching/store/jobs/test_job_store.py"
WEBHOOKS = "tests/unit/batching/store/jobs/test_webhook_store.py"
STORM_OVER_JOBS = f"{CHAOS}jobs.py::test_f46_storm_loses_no_job_but_what_redis_had_not_written"
TEST_TIMEOUT_S = 150  # for each
PATIENCE_S = 8  # of a client; without its mechanism, a request often has no answer at all
TESTS_FAILED = 1  # pytest's exit code


@dataclass(frozen=True)
class Mutant:
    """Without `line` in `path` the mechanism is off, and `test` must fail."""

    mechanism: str
    path: str
    line: str
    instead: str
    test: str


MUTANTS = (
    Mutant(
        "a process that a handler forks ends when it comes back",
        "workers/handling/handler_call.py",
        "            self._guard.end_fork()\n",
        "",
        f"{CHAOS}handlers.py::test_f44_fork_that_comes_back_from_a_call_ends[raise]",
    ),
    Mutant(
        "stale attempts are fenced off",
        "batching/store/scripts/reply.lua",
        "if attempts == attempt and owner == worker_id then",
        "if true then",
        f"{CHAOS}workers.py::test_f08_frozen_worker_that_wakes_up_cannot_answer_any_more",
    ),
    Mutant(
        "only a worker that has the request in its lease may answer it",
        "batching/store/scripts/reply.lua",
        "local is_whole = is_owning_all(first, last)",
        "local is_whole = true",
        "tests/unit/batching/store/scripts/test_reply.py::test_reply_of_another_worker_is_stale_and_the_owner_still_answers",
    ),
    Mutant(
        "a suspect that is handed out is its last owner's no more",
        "batching/store/scripts/claim.lua",
        "if owner ~= '-' then",
        "if false then",
        MACHINE,
    ),
    Mutant(
        "a suspect that was answered late waits no more",
        "batching/store/scripts/reply.lua",
        "redis.call('LREM', KEYS[8], 1, id)",
        "",
        MACHINE,
    ),
    Mutant(
        "what another worker owns by now is not taken back",
        "batching/store/scripts/reclaim.lua",
        "elseif attempts + 1 ~= tonumber(attempt) then",
        "elseif false then",
        "tests/unit/batching/store/scripts/test_reclaim.py::test_reclaim_touches_nothing_that_another_worker_owns_by_now",
    ),
    Mutant(
        "crash suspects are retried alone",
        "batching/store/scripts/reclaim.lua",
        "redis.call('RPUSH', KEYS[5], id)",
        "redis.call('RPUSH', KEYS[4], id)",
        f"{CHAOS}workers.py::test_f04_f05_poison_fails_alone[f04]",
    ),
    Mutant(
        "attempts are limited",
        "batching/store/scripts/reclaim.lua",
        "elseif tonumber(attempt) >= tonumber(ARGV[4]) then",
        "elseif false then",
        MACHINE,
    ),
    Mutant(
        "a node takes back what its dead child held",
        "workers/slots/slot.py",
        "        count = await self._take_back(worker_id, ended)\n",
        "        count = await asyncio.sleep(0, 0)\n",
        f"{CHAOS}workers.py::test_f01_killed_child_costs_its_batch_only_time",
    ),
    Mutant(
        "nodes take back what a dead node held",
        "workers/node/heartbeat.py",
        "                await self.reap()\n",
        "                await asyncio.sleep(0)\n",
        f"{CHAOS}workers.py::test_f02_killed_node_costs_its_batch_only_time",
    ),
    Mutant(
        "a handler that hangs is ended",
        "workers/slots/assignment.py",
        "self._is_running = True\n        self._times[0] = time.monotonic() + self._run_s",
        "self._is_running = True\n        self._times[0] = math.inf",
        f"{CHAOS}workers.py::test_f07_handler_that_hangs_is_killed_and_its_neighbours_are_served",
    ),
    Mutant(
        "a failed batch's bodies are read again",
        "workers/handling/runner.py",
        "again = self.read_again(items)",
        "again = items",
        "tests/unit/workers/handling/test_runner.py"
        "::test_body_that_a_handler_has_changed_comes_anew_when_its_batch_failed",
    ),
    Mutant(
        "a crash loop backs off",
        "batching/process/retries.py",
        "DELAYS_S = (0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)",
        "DELAYS_S = (0.0, 0.0)",
        f"{CHAOS}workers.py::test_f13_worker_that_never_starts_backs_off_and_the_queue_refuses",
    ),
    Mutant(
        "what Redis lost is submitted again",
        "batching/store/channel.py",
        "                if self._resubmit(request, self._patience.resubmit_share):\n",
        "                if False:\n",
        f"{CHAOS}redis.py::test_f15_f17_requests_survive_a_redis_that_lost_everything[flush]",
    ),
    Mutant(
        "a client that waits for an unregistered version is told",
        "batching/store/scripts/audit.lua",
        "is_abandoned and 4 or 1",
        "1",
        f"{CHAOS}registry.py"
        "::test_unregistered_version_keeps_no_client_waiting_when_the_last_node_dies",
    ),
    Mutant(
        "nodes restore the registry",
        "workers/node/node.py",
        "self.registry.restore(self._known.values())",
        "pass",
        f"{CHAOS}redis.py::test_f15_f17_requests_survive_a_redis_that_lost_everything[flush]",
    ),
    Mutant(
        "beats go on at maxmemory",
        "batching/store/scripts/beat.lua",
        "for i = set, set + leases do redis.call('PEXPIRE', KEYS[i], ARGV[1]) end",
        "",
        f"{CHAOS}redis.py::test_f23_full_memory_stops_admission_only",
    ),
    Mutant(
        "a submit may be repeated",
        "batching/store/scripts/submit.lua",
        "if open[n] or records[id] or",
        "if",
        f"{CHAOS}cuts.py::test_f21_f37_submit_again_queues_once",
    ),
    Mutant(
        "a worker gives back what a lost claim may have brought",
        "workers/handling/worker.py",
        "                # The claim may have been carried out and only its answer lost.\n"
        "                self._unsure_until = time.monotonic() + UNSURE_S\n",
        "",
        f"{CHAOS}cuts.py::test_f21_worker_whose_claim_was_cut_serves_it_all_the_same",
    ),
    Mutant(
        "a worker that waits looks for claims that arrive late",
        "workers/handling/worker.py",
        "LOOK_AGAIN_S = 1.0",
        "LOOK_AGAIN_S = 1000",
        f"{CHAOS}cuts.py::test_f21_claim_that_arrives_late_is_given_back_by_a_worker_that_waits",
    ),
    Mutant(
        "a connection to a silent host ends",
        "batching/store/held_connections.py",
        '        "TCP_USER_TIMEOUT": 1000,  # ms\n',
        "",
        "tests/unit/batching/store/test_connection_limits.py::"
        "test_connection_ends_after_a_second_unheard_or_a_few_of_silence",
    ),
    Mutant(
        "a connection that was lost while idle is made anew",
        "batching/store/held_connections.py",
        "self._writer.is_closing()",
        "False",
        "tests/unit/batching/store/test_held_connections.py::"
        "test_pooled_connection_that_was_lost_while_idle_is_made_anew[uvloop]",
    ),
    Mutant(
        "a held connection that was lost while idle is made anew",
        "batching/store/held_connections.py",
        "return not self._transport.is_closing()",
        "return True",
        "tests/unit/batching/store/test_held_connections.py::"
        "test_held_connection_that_was_lost_while_idle_is_made_anew[uvloop]",
    ),
    Mutant(
        "a late answer reaches no later call",
        "batching/store/held_connections.py",
        "            self.give_up()\n            raise\n",
        "            raise\n",
        "tests/unit/batching/store/test_held_connections.py::"
        "test_call_that_failed_gets_no_later_one_its_answer[uvloop-cancelled-parsed]",
    ),
    Mutant(
        "a request whose body found no room is refused",
        "batching/store/scripts/submit.lua",
        "elseif lacks_bodies and",
        "elseif false and",
        "tests/unit/batching/store/scripts/test_submit.py::"
        "test_submit_refuses_only_requests_whose_bodies_found_no_room",
    ),
    Mutant(
        "a look-up does not wait for a silent Redis",
        "batching/store/registry/catalog.py",
        "LOOK_UP_PATIENCE_S = 0.8",
        "LOOK_UP_PATIENCE_S = 80",
        "tests/unit/batching/store/registry/test_catalog.py::test_catalog_refuses_soon_when_redis_is_not_heard",
    ),
    Mutant(
        "an unread answer ends its connection",
        "ingress/http1/listener.py",
        "bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)",
        "pass",
        "tests/unit/ingress/http1/test_slow_clients.py::"
        "test_f34_answer_that_is_not_read_ends_its_connection",
    ),
    Mutant(
        "a node introduces itself again",
        "workers/node/heartbeat.py",
        "        self._unsure |= beaten  # until the answer comes\n",
        "",
        f"{CHAOS}cuts.py::test_f21_node_whose_first_beat_was_cut_introduces_itself_again",
    ),
    Mutant(
        "a wake-up that was lost is sent again",
        "batching/store/scripts/beat.lua",
        "if waiting > 0 and",
        "if false and",
        f"{CHAOS}scripts.py::test_f38_lost_wakeup_costs_a_second_at_most",
    ),
    Mutant(
        "a batch window ends by the local clock",
        "batching/store/worker_queue.py",
        "is_full = self._more.wait(max(MIN_WAIT_S, wait_s))",
        "is_full = self._client.blpop([self._more._name], timeout=wait_s) is not None",
        f"{CHAOS}clients.py::test_f36_idle_request_waits_no_longer_than_the_delay",
    ),
    Mutant(
        "a cancelled request leaves the queue",
        "batching/store/scripts/cancel.lua",
        "redis.call('LREM', KEYS[1], 1, id) == 0 and",
        "",
        f"{CHAOS}scripts.py::test_f39_cancel_storm_leaves_nothing_to_wade_through",
    ),
    Mutant(
        "a cancelled request is in no lease",
        "batching/store/scripts/cancel.lua",
        "      end_lease(id, (string.match(record, '^%d+') or 0) + 1)\n",
        "",
        MACHINE,
    ),
    Mutant(
        "expired requests are not handed out",
        "batching/store/scripts/claim.lua",
        "elseif queued_us / 1000 + ttl_ms <= now_ms then",
        "elseif false then",
        MACHINE,
    ),
    Mutant(
        "the queue is bounded",
        "batching/store/scripts/submit.lua",
        "elseif waiting >= max_queue then",
        "elseif false then",
        MACHINE,
    ),
    Mutant(
        "work of a dead ingress is dropped",
        "batching/store/scripts/claim.lua",
        "or not is_alive(ingress_id) then",
        "then",
        f"{CHAOS}clients.py::test_f29_work_of_a_dead_ingress_is_not_done",
    ),
    Mutant(
        "a client that left is noticed",
        "ingress/predictions/prediction.py",
        "        exchange.on_left = prediction.leave\n",
        "",
        f"{CHAOS}clients.py::test_f26_work_of_clients_that_left_the_queue_is_not_done",
    ),
    Mutant(
        "a late reply reaches no client that came after its own had left",
        "batching/store/channel.py",
        RECEIVER,
        ANY_RECEIVER,
        f"{OWN_ANSWERS}::test_reply_to_a_client_that_left_reaches_no_other_one[False-0]",
    ),
    Mutant(
        "a reply that comes again answers no later request on its connection",
        "batching/store/channel.py",
        RECEIVER,
        ANY_RECEIVER,
        f"{OWN_ANSWERS}::test_reply_that_comes_again_answers_no_later_request[False]",
    ),
    Mutant(
        "what waits on a connection is not read over",
        "ingress/http1/connection.py",
        "self._held.append(bytes(data))",
        "self._held.append(data)",
        f"{OWN_ANSWERS}::test_requests_that_wait_on_their_connections_are_kept_apart",
    ),
    Mutant(
        "a body's buffer is not used again when its client has left",
        "ingress/http1/connection.py",
        "        start = 0\n",
        "        self.content = globals().setdefault('_POOL', {}).setdefault(\n"
        "            len(self.content), self.content\n"
        "        )\n        start = 0\n",
        f"{OWN_ANSWERS}::test_bodies_of_clients_that_left_are_no_other_clients_bodies",
    ),
    Mutant(
        "a body in shared memory is looked at again when it has been copied",
        "batching/store/arena.py",
        "return body if self._memory[units] == stamp else None",
        "return body",
        f"{GENERATIONS}::test_copy_into_which_the_next_body_is_written_is_given_up",
    ),
    Mutant(
        "shared memory is a body's for as long as it is needed",
        "batching/store/arena.py",
        "        slot: Any = room.obj\n",
        "        slot: Any = room.obj\n"
        "        self._taken[slot.units] = bytes(len(self._taken[slot.units]))\n",
        f"{GENERATIONS}::test_slot_is_its_bodys_until_nobody_needs_it",
    ),
    Mutant(
        "bodies go by shared memory only where all workers share it",
        "batching/store/arena.py",
        "all(worker_id.endswith(mark) for worker_id in worker_ids)",
        "True",
        f"{GENERATIONS}::test_worker_that_shares_no_memory_has_all_bodies_go_by_redis",
    ),
    Mutant(
        "requests that gather while Redis is away are submitted, too",
        "batching/store/channel.py",
        "        while self._pending:\n",
        "        for _ in [0] if self._pending else []:\n",
        f"{OWN_ANSWERS}::test_requests_that_gather_while_redis_stands_still_are_run_once",
    ),
    Mutant(
        "a connection that ends gives up its requests",
        "ingress/http1/connection.py",
        "            exchange.break_off()\n            exchange.leave()\n",
        "            exchange.break_off()\n",
        f"{OWN_ANSWERS}::test_request_of_a_client_that_left_is_soon_in_no_queue[reset]",
    ),
    Mutant(
        "a client that does not read has no further request begun",
        "ingress/http1/connection.py",
        "if self._drained is None:",
        "if True:",
        "tests/unit/ingress/http1/test_connection.py::"
        "test_request_that_comes_later_is_begun_when_the_answers_before_it_are_taken_in",
    ),
    Mutant(
        "an answer that has begun is not begun again",
        "batching/store/scripts/reclaim.lua",
        "elseif chunks ~= '0' then",
        "elseif false then",
        "tests/unit/batching/store/scripts/test_chunk.py::test_answer_that_has_begun_is_never_begun_again",
    ),
    Mutant(
        "a slow client holds its stream up",
        "batching/store/scripts/chunk.lua",
        "if waiting >= limit then",
        "if false then",
        "tests/unit/ingress/predictions/test_streams.py::test_client_that_reads_nothing_is_given_up",
    ),
    Mutant(
        "a broken stream has no end",
        "ingress/http1/connection.py",
        "is_whole = False",
        "is_whole = True",
        "tests/e2e/test_e2e_streaming.py::test_stream_that_breaks_has_no_last_chunk",
    ),
    Mutant(
        "a leaving node gives back its requests",
        "workers/slots/slot.py",
        "        mode = ReclaimMode.RELEASED if is_stopping else ReclaimMode.CRASHED\n",
        "        if is_stopping:\n            return 0\n        mode = ReclaimMode.CRASHED\n",
        f"{CHAOS}stop.py::test_f32_second_signal_gives_back_at_once",
    ),
    Mutant(
        "a job's result is kept",
        "batching/store/scripts/parts/finish_job.lua",
        "'finished_ms', now_ms, 'result', result)",
        "'finished_ms', now_ms, 'result', '')",
        f"{JOBS}::test_job_waits_runs_and_keeps_its_result[server]",
    ),
    Mutant(
        "a job that is sent again with its key is accepted once",
        "ingress/jobs/job_service.py",
        "            if not key:\n",
        "            if True:\n",
        STORM_OVER_JOBS,
    ),
    Mutant(
        "a job outlives the ingress that accepted it",
        "batching/store/scripts/claim.lua",
        "local ingress_is_alive = {job = true}",
        "local ingress_is_alive = {}",
        f"{JOBS}::test_job_outlives_the_ingress_that_accepted_it_and_its_worker[server]",
    ),
    Mutant(
        "a large result that is sent again is kept",
        "batching/store/scripts/parts/answer_job.lua",
        "if is_large and (is_kept or code == 2) then",
        "if is_large and is_kept then",
        f"{JOBS}::test_large_job_and_large_result[server]",
    ),
    Mutant(
        "a job that runs is nobody's once it is cancelled",
        "batching/store/scripts/cancel_job.lua",
        "    if redis.call('LREM', KEYS[6] .. worker_id, 1, entry) == 1 then break end\n",
        "",
        f"{JOBS}::test_cancelled_job_is_not_run_or_its_result_is_dropped[server-runs]",
    ),
    Mutant(
        "a worker gives back what it has answered and Redis has forgotten, jobs too",
        "workers/handling/worker.py",
        "            self.queue.recover()\n",
        "",
        STORM_OVER_JOBS,
    ),
    Mutant(
        "a job that is cancelled leaves its queue",
        "batching/store/scripts/cancel_job.lua",
        "redis.call('LREM', KEYS[8], 1, id) + ",
        "",
        JOB_MACHINE,
    ),
    Mutant(
        "a job that is a suspect runs alone, even if the last worker died with it",
        "batching/store/scripts/refuse.lua",
        "table.insert(suspect and suspects or urgent,",
        "table.insert(urgent,",
        f"{JOBS}::test_jobs_that_crashed_with_a_worker_run_alone_even_if_it_was_the_last[server]",
    ),
    Mutant(
        "an ingress that was there before the first node knows when Redis was emptied",
        "batching/store/registry/catalog.py",
        "                        if not self._epoch:\n",
        "                        if False:\n",
        "tests/unit/batching/store/registry/test_catalog.py"
        "::test_catalog_that_has_looked_nothing_up_knows_what_was_there",
    ),
    Mutant(
        "a receiver hears of a job's end in the step that ends it",
        "batching/store/scripts/parts/finish_job.lua",
        "  if known[2] then tell_webhook(",
        "  if false then tell_webhook(",
        f"{WEBHOOKS}::test_end_is_told_once[server]",
    ),
    Mutant(
        "a sender that dies leaves its event to another",
        "batching/store/scripts/claim_webhooks.lua",
        "    redis.call('ZADD', KEYS[1], now_ms + ARGV[2], entry)\n",
        "    redis.call('ZREM', KEYS[1], entry)\n",
        f"{WEBHOOKS}::test_sender_that_died_leaves_its_event_to_another[server]",
    ),
    Mutant(
        "the connection goes to an address that was checked",
        "workers/node/webhook_sender.py",
        "        self._rules.check_addresses(host, addresses)\n",
        "",
        "tests/unit/workers/node/test_webhook_delivery.py::test_name_that_leads_inside_is_not_connected_to",
    ),
)


def main() -> int:
    """Runs all mutants; 0 when every one was caught."""
    words = sys.argv[1:]
    chosen = [m for m in MUTANTS if not words or any(word in m.mechanism for word in words)]
    console = Console()
    with tempfile.TemporaryDirectory(prefix="ferry-mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        intact = run_tests(tree, sorted({mutant.test for mutant in chosen}))
        if intact != 0:
            console.print("The tests fail without any mutation; nothing is shown.")
            return 1
        missed = 0
        for mutant in chosen:
            began = time.monotonic()
            is_caught = catches(tree, mutant)
            missed += not is_caught
            verdict = "caught" if is_caught else "MISSED"
            seconds = time.monotonic() - began
            console.print(f"{verdict}: {mutant.mechanism} ({seconds:.0f} s)")
    console.print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return 1 if missed else 0


def copy_tree(target: Path) -> None:
    """Copies the working tree's packages and tests."""
    for name in PACKAGES:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy(source, target / name)


def catches(tree: Path, mutant: Mutant) -> bool:
    """Returns whether the test fails without the mechanism; leaves the tree whole."""
    path = tree / mutant.path
    whole = path.read_text(encoding="utf-8")
    if whole.count(mutant.line) != 1:
        raise SystemExit(f"{mutant.path} has not exactly one {mutant.line!r}")
    path.write_text(whole.replace(mutant.line, mutant.instead), encoding="utf-8")
    try:
        return run_tests(tree, [mutant.test]) == TESTS_FAILED
    finally:
        path.write_text(whole, encoding="utf-8")


def run_tests(tree: Path, tests: list[str]) -> int:
    """Returns pytest's exit code; a run that does not end counts as failed tests."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CHAOS_PATIENCE_S": str(PATIENCE_S),
        "CHAOS_SHRINK": "0",
    }
    options = ["-q", "-x", "--reruns", "0", "-p", "no:cacheprovider"]
    words = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(
            words,
            cwd=tree,
            env=environment,
            capture_output=True,
            timeout=TEST_TIMEOUT_S * len(tests),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TESTS_FAILED
    if done.returncode not in {0, TESTS_FAILED}:
        raise SystemExit(done.stdout.decode()[-4000:])
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
