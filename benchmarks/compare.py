"""Requests per second of torchferry and other servers side by side, in one run.

    python -m benchmarks.compare --workload echo label-110k --servers torchserve

Exit code 0: every bar is reached; 1: one is missed; 2: one could not be judged.
"""

import argparse
import importlib.metadata
import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import contest
from benchmarks.contest import WORKLOADS, Participant, Run, Workload
from benchmarks.measuring import records
from benchmarks.measuring.load import wrk_path
from benchmarks.measuring.records import OURS, Verdict
from benchmarks.servers.running import Server, Torchferry

PAIRS, SHORT_PAIRS, SHORT_SECONDS = 5, 2, 1
# TorchServe's JVM reaches its speed after some 20,000 requests, on a slow machine in ten seconds.
FIRST_WARM_UP_S, WARM_UP_S = 15.0, 3.0
SCORE_TOLERANCE = 1e-3
# What `make bench-compare` measures: the request path. A network takes longer than all of them.
REQUEST_PATH = [name for name, workload in WORKLOADS.items() if not workload.is_network]
PACKAGES = ("torchferry", "torch", "torchvision", "httptools", "redis", "aiohttp")
KINDS = ("ingress", "Redis", "workers")
HEADS = ("", "requests/s", "ours to it", "in turns", "p50 ms", "p99 ms", "processor us", "errors")
# Of the first one more is better, of the others less.
FIGURES = {
    "requests_per_s": "requests/s",
    "p99_ms": "p99",
    "cpu_us": "processor time per request",
}
_MANY = 100.0


def parse() -> argparse.Namespace:
    parser = records.parser_of("compare")
    add = parser.add_argument
    add("--workload", nargs="+", choices=WORKLOADS, default=REQUEST_PATH)
    add("--servers", nargs="+", choices=contest.SERVERS, help="beside torchferry")
    add("--before", type=Path, help="another working tree, measured as well")
    add("--pairs", type=records.positive, help="turns")
    add("--seconds", type=records.positive, help="of each run")
    options = parser.parse_args()
    options.pairs = options.pairs or (SHORT_PAIRS if options.short else PAIRS)
    return options


def measure(options: argparse.Namespace) -> int:
    """Prints and writes the comparisons; returns the worst of their exit codes."""
    codes = []
    for is_network in sorted({WORKLOADS[name].is_network for name in options.workload}):
        names = [name for name in options.workload if WORKLOADS[name].is_network == is_network]
        for name, record in compare(names, options, is_network=is_network):
            table = markdown(record, name)
            print(f"\n{table}")
            records.publish(record, name, table, is_short=options.short)
            codes.append(records.exit_code(record))
    return max(codes)


def compare(
    names: Sequence[str], options: argparse.Namespace, *, is_network: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measures these workloads on the same servers; yields each one's record as it is done.

    Raises:
        BenchmarkError: torchferry or a tool is missing or failed.
    """
    if not is_network:
        wrk_path()
    asked = {name: options.servers or WORKLOADS[name].servers for name in names}
    with ExitStack() as stack:
        # Before the folder goes, the servers have to be gone.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="model-")))
        models, photos = contest.prepare(folder, is_network=is_network)
        ours = stack.enter_context(Torchferry(*models))
        tree = options.before and options.before.resolve()
        before = [stack.enter_context(Torchferry(*models, tree=tree))] if tree else []
        others: dict[str, Participant] = {}
        left_out: dict[str, str] = {}
        for server in dict.fromkeys(itertools.chain(*asked.values())):
            try:
                rival = contest.other(server, models, photos)
                others[server] = stack.enter_context(rival) if isinstance(rival, Server) else rival
            except records.BenchmarkError as error:
                left_out[server] = str(error)
        for name in names:
            workload = WORKLOADS[name]
            servers = [ours, *(others[one] for one in asked[name] if one in others), *before]
            seconds = options.seconds or (SHORT_SECONDS if options.short else workload.seconds)
            warm_up_s = WARM_UP_S if options.short or name != names[0] else FIRST_WARM_UP_S
            for server in servers:
                contest.check(workload, server)
                contest.run_once(workload, server, photos, warm_up_s)
            runs = in_turns(workload, servers, photos, options.pairs, seconds)
            record = {"pairs": options.pairs, "seconds": seconds}
            record |= to_record(workload, servers, runs)
            theirs = others.get("torchserve")
            if photos and isinstance(theirs, Server):
                record["answers"] = contest.agreement(ours, theirs, photos)
            missing = {one: why for one, why in left_out.items() if one in asked[name]}
            record["left_out"] = {contest.SERVERS[one]: why for one, why in missing.items()}
            judged = verdicts(workload, record)
            yield name, record | {"verdicts": [asdict(verdict) for verdict in judged]}


def in_turns(
    workload: Workload,
    servers: Sequence[Participant],
    photos: list[Path],
    turns: int,
    seconds: float,
) -> dict[str, list[Run]]:
    """Measures the servers in turns: run i of each is of turn i."""
    runs: dict[str, list[Run]] = {server.name: [] for server in servers}
    for turn, server in itertools.product(range(1, turns + 1), servers):
        run = contest.run_once(workload, server, photos, seconds)
        runs[server.name].append(run)
        rate = f"{run['requests_per_s']:,.0f} requests/s, p50 {run['p50_ms']:.2f} ms"
        print(f"{workload.title}, {turn} of {turns}: {server.name}: {rate}", flush=True)
    return runs


# --- what it comes to


def to_record(
    workload: Workload, servers: Sequence[Participant], runs: Mapping[str, Sequence[Run]]
) -> dict[str, Any]:
    """Returns the runs and their medians, with what a claim citing them needs."""
    measured: dict[str, dict[str, Any]] = {}
    ours = [run["requests_per_s"] for run in runs[OURS]]
    for server in servers:
        median = median_run(runs[server.name])
        measured[server.name] = {"version": server.version, "median": median}
        measured[server.name]["runs"] = runs[server.name]
        if server.name != OURS:
            theirs = [run["requests_per_s"] for run in runs[server.name]]
            measured[server.name]["ratio"] = round(
                statistics.median(ours) / statistics.median(theirs), 3
            )
            turns = [round(one / other, 3) for one, other in zip(ours, theirs, strict=True)]
            measured[server.name]["ratios_of_turns"] = turns
    others = [run["others_percent"] for some in runs.values() for run in some]
    setting = ("model", "connections", "body_bytes")
    return {
        "title": workload.title,
        **records.origin(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "others_percent": round(statistics.median(others), 1),
        "setting": {name: getattr(workload, name) for name in setting},
        "servers": measured,
    }


def median_run(runs: Sequence[Run]) -> Run:
    """Returns the median of each figure by itself; adds up errors."""
    names = ("requests_per_s", "p50_ms", "p99_ms", "cpu_us", "load_us", "others_percent")
    middle = {name: round(statistics.median(run[name] for run in runs), 3) for name in names}
    middle["errors"] = sum(run["errors"] for run in runs)
    middle["kinds_us"] = {
        kind: [statistics.median(run["kinds_us"][kind][part] for run in runs) for part in (0, 1)]
        for kind in runs[0]["kinds_us"]
        if all(kind in run["kinds_us"] for run in runs)  # that of control jobs comes and goes
    }
    return middle


def verdicts(workload: Workload, record: Mapping[str, Any]) -> Iterator[Verdict]:
    servers = record["servers"]
    for bar in workload.bars:
        if bar.rival in servers:
            ours, theirs = (servers[name]["median"][bar.figure] for name in (OURS, bar.rival))
            ratio = ours / theirs
            text = f"{ratio:.2f} x {bar.rival}'s {FIGURES[bar.figure]}"
            if bar.figure == "requests_per_s":
                yield Verdict(ratio >= bar.limit, f"{text} (at least {bar.limit:g})")
            else:
                yield Verdict(ratio <= bar.limit, f"{text} (at most {bar.limit:g})")
        elif bar.rival in record["left_out"]:  # one that was not asked for says nothing
            yield Verdict(None, f"{bar.rival} was not measured")
    if answers := record.get("answers"):
        yield judge_answers(answers)
    errors = servers[OURS]["median"]["errors"]
    text = f"{errors} requests answered with an error by {OURS} (at most 0)"
    yield Verdict(errors == 0, text)


def judge_answers(answers: Mapping[str, Any]) -> Verdict:
    photos = f"as {contest.TORCHSERVE} for {answers['photos']} photos"
    is_same, difference = answers["has_same_five"], answers["largest_difference"]
    text = (
        f"{'the' if is_same else 'not the'} same five best classes {photos}, "
        f"scores within {difference:g} (at most {SCORE_TOLERANCE:g})"
    )
    return Verdict(is_same and difference <= SCORE_TOLERANCE, text)


def markdown(record: Mapping[str, Any], name: str) -> str:
    """Returns the record of the workload of this name as a section of a document has it."""
    servers: Mapping[str, Any] = record["servers"]
    rows = []
    for server, measured in servers.items():
        median, turns = measured["median"], measured.get("ratios_of_turns")
        rate = median["requests_per_s"]
        rows.append(
            (
                f"{server} {measured['version']}".strip(),
                f"{rate:,.0f}" if rate >= _MANY else f"{rate:.2f}",
                f"{measured['ratio']:.2f}" if turns else "",
                f"{min(turns):.2f} to {max(turns):.2f}" if turns else "",
                *(f"{median['p50_ms']:.2f}", f"{median['p99_ms']:.1f}"),
                f"{median['cpu_us']:,.0f}" if median["cpu_us"] else "",
                median["errors"],
            )
        )
    lines = [
        f"`python -m benchmarks.compare --workload {name}` at {records.told(record)}; "
        f"{record['pairs']} turns of {record['seconds']:g} s each. Other processes took "
        f"{record['others_percent']:g} % of the machine.",
        "",
        records.table_of(HEADS, rows),
        "",
        *_spent(servers[OURS]["median"]),
        *records.verdict_lines(record),
        # Of a failure its kind and the first line of pip or the server.
        *(
            f"- left out: {server}: {' '.join(why.splitlines()[:2])}"
            for server, why in record["left_out"].items()
        ),
        *(
            f"- **slower than {server}**, which does {1 / measured['ratio']:.2f} x as much"
            for server, measured in servers.items()
            if measured.get("ratio", 1.0) < 1
        ),
    ]
    return "\n".join(lines)


def _spent(median: Run) -> list[str]:
    """Says where torchferry's processor time goes, and how much the load took."""
    kinds = [(kind, *median["kinds_us"][kind]) for kind in KINDS if kind in median["kinds_us"]]
    spent = ", ".join("{} {:.1f} + {:.1f}".format(*kind) for kind in kinds)
    return [f"Of torchferry in own code + kernel, us: {spent}; load: {median['load_us']:.1f}.", ""]


if __name__ == "__main__":
    options = parse()
    sys.exit(records.guarded(lambda: measure(options)))
