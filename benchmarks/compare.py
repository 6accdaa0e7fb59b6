"""Requests per second of torchferry and other servers side by side, in one run.

python -m benchmarks.compare --workload echo label-110k --servers torchserve
"""

import argparse
import importlib.metadata
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measuring import records
from benchmarks.measuring.load import Load, drive, drive_with_wrk, wrk_path
from benchmarks.measuring.processors import Meter
from benchmarks.measuring.records import OURS, BenchmarkError, Verdict
from benchmarks.servers.child import run_module, write_archive
from benchmarks.servers.installed import environment_of, torchserve_python
from benchmarks.servers.running import (
    HANDLERS,
    THREADS,
    Mosec,
    ServedModel,
    Server,
    Torchferry,
    TorchServe,
)
from workers.slots.worker_process import ALLOCATOR

TORCHSERVE, MOSEC, BARE_LOOP = TorchServe.name, Mosec.name, "bare loop"
# Beside torchferry, as options name them, and as everything else does.
SERVERS = {"torchserve": TORCHSERVE, "mosec": MOSEC, "bare": BARE_LOOP}
PHOTO_BYTES, MB = 110_000, 1_000_000
RESNET = "resnet-152"
TURNS, SHORT_TURNS, SHORT_SECONDS = 5, 2, 1
# TorchServe's JVM reaches its speed after some 20,000 requests, on a slow machine in ten seconds.
FIRST_WARM_UP_S, WARM_UP_S = 15.0, 3.0
SCORE_TOLERANCE = 1e-3
PACKAGES = ("torchferry", "torch", "torchvision", "httptools", "redis", "aiohttp")
HEADS = ("", "requests/s", "ours to it", "in turns", "p50 ms", "p99 ms", "processor us", "errors")
# Of the first one more is better, of the others less.
FIGURES = {
    "requests_per_s": "requests/s",
    "p99_ms": "p99",
    "cpu_us": "processor time per request",
}
CORES = os.cpu_count() or 1
_MANY = 100.0
_CONTENT = bytes(range(128))

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """Sets what torchferry has to reach: `limit` times the rival's figure, a median of runs."""

    figure: str
    limit: float
    rival: str = TORCHSERVE


@dataclass(frozen=True, slots=True)
class Workload:
    """Says how a model is driven; a network answers photos."""

    title: str
    bars: tuple[Bar, ...]
    model: str
    connections: int
    body_bytes: int = 1024
    is_network: bool = False
    seconds: int = 5
    servers: tuple[str, ...] = ("torchserve", "mosec")

    def expected(self, body: bytes) -> bytes:
        """Returns the answer to this body, unless the model is a network."""
        return b"%d %d" % (len(body), body[-1]) if self.model == "label" else body


def _echo(connections: int) -> Workload:
    bars = (Bar("requests_per_s", 3.0), Bar("p99_ms", 0.4), Bar("requests_per_s", 0.8, MOSEC))
    return Workload(f"Echo, 1 KiB, {connections} connections", bars, "echo", connections)


def _bodies(title: str, model: str, body_bytes: int, least_ratio: float) -> Workload:
    bars = (Bar("requests_per_s", least_ratio), Bar("cpu_us", 0.45))
    return Workload(title, bars, model, 64, body_bytes)


WORKLOADS = {
    "echo": _echo(64),
    "echo-256": _echo(256),
    "label-110k": _bodies("110 kB in, a label out", "label", PHOTO_BYTES, 2.0),
    "label-1m": _bodies("1 MB in, a label out", "label", MB, 1.5),
    "echo-110k": _bodies("110 kB in, 110 kB out", "echo", PHOTO_BYTES, 1.5),
    "resnet": Workload(
        "ResNet-152",
        (Bar("requests_per_s", 1.5), Bar("requests_per_s", 0.95, BARE_LOOP)),
        RESNET,
        connections=16,
        body_bytes=0,
        is_network=True,
        seconds=20,
        servers=("torchserve", "bare"),
    ),
}
# What `make bench-compare` measures: the request path. A network takes longer than all of them.
REQUEST_PATH = [name for name, workload in WORKLOADS.items() if not workload.is_network]


class BareLoop:
    """Runs the handler in a loop without any server; each run is a process of its own."""

    name, version = BARE_LOOP, ""

    def __init__(self, model: ServedModel, photo: Path) -> None:
        self._model, self._photo = model, photo

    def run(self, seconds: float) -> Run:
        model = self._model
        words = (model.archive, self._photo, model.batch_size, seconds)
        # A worker's environment, as far as it matters for speed.
        environment = ALLOCATOR | os.environ | THREADS
        report: Run = json.loads(
            run_module("bare_loop", "handler", *words, environment=environment)
        )
        return report | {"cpu_us": 0.0, "kinds_us": {}, "load_us": 0.0, "others_percent": 0.0}


Participant = Server | BareLoop


def measure(options: argparse.Namespace) -> int:
    """Prints and writes the comparisons; returns the worst of their exit codes."""
    codes = []
    for is_network in sorted({WORKLOADS[name].is_network for name in options.workload}):
        names = [name for name in options.workload if WORKLOADS[name].is_network == is_network]
        for name, record in compare(names, options, is_network=is_network):
            codes.append(
                records.publish(record, name, markdown(record, name), is_short=options.short)
            )
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
        models, photos = prepare(folder, is_network=is_network)
        ours = stack.enter_context(Torchferry(*models))
        tree = options.before and options.before.resolve()
        before = [stack.enter_context(Torchferry(*models, tree=tree))] if tree else []
        others: dict[str, Participant] = {}
        left_out: dict[str, str] = {}
        for server in dict.fromkeys(itertools.chain(*asked.values())):
            try:
                rival = other(server, models, photos)
                others[server] = stack.enter_context(rival) if isinstance(rival, Server) else rival
            except BenchmarkError as error:
                left_out[server] = str(error)
        for name in names:
            servers = [ours, *(others[one] for one in asked[name] if one in others), *before]
            warm_up_s = WARM_UP_S if options.short or name != names[0] else FIRST_WARM_UP_S
            record = in_turns(name, servers, photos, warm_up_s, is_short=options.short)
            theirs = others.get("torchserve")
            if photos and isinstance(theirs, Server):
                record["answers"] = agreement(ours, theirs, photos)
            missing = {SERVERS[one]: why for one, why in left_out.items() if one in asked[name]}
            record["left_out"] = missing
            judged = verdicts(WORKLOADS[name], record)
            yield name, record | {"verdicts": [asdict(verdict) for verdict in judged]}


def prepare(folder: Path, *, is_network: bool) -> tuple[list[ServedModel], list[Path]]:
    """Writes the archives into the folder, of a network with photos, which takes half a minute."""
    if is_network:
        run_module("networks", "resnet", folder)
        model = ServedModel(RESNET, folder / f"{RESNET}.mar", 8, 50)
        return [model], sorted(folder.glob("photo-*.jpg"))
    models = []
    for name in ("echo", "label"):
        archive = folder / f"{name}.mar"
        write_archive(archive, {"handler": f"{HANDLERS.name}:{name}"}, HANDLERS)
        models.append(ServedModel(name, archive, 32, 5, queue_size=256))
    return models, []


def other(name: str, models: list[ServedModel], photos: list[Path]) -> Participant:
    """Returns the server beside torchferry that an option names.

    Raises:
        BenchmarkError: it cannot be installed, or has no such model.
    """
    if name == "torchserve":
        return TorchServe(*models, python=torchserve_python())
    if name == "bare" and photos:
        return BareLoop(models[0], photos[0])
    if name == "mosec" and not photos:
        return Mosec(*models, python=environment_of(f"mosec=={Mosec.version}"))
    raise BenchmarkError(f"{name} does not serve {models[0].name}")


def run_once(workload: Workload, server: Participant, photos: list[Path], seconds: float) -> Run:
    """Returns the figures of one run, times of processors in microseconds per request.

    `cpu_us` is of all processes of the server, `kinds_us` by kind: own code, kernel; `load_us` of
    what drove it; `others_percent` of the machine's processors is what neither used meanwhile.
    """
    if isinstance(server, BareLoop):
        return server.run(seconds)
    body = photos[0].read_bytes() if photos else b"x" * workload.body_bytes
    # An echo that answers without the body would be fast and wrong.
    least_answer_bytes = 0 if photos else len(workload.expected(body))
    url = server.url_of(workload.model)
    load = Load(url, body, workload.connections, least_answer_bytes=least_answer_bytes)
    meter, load_before, started_s = Meter(server.processes()), os.times(), time.perf_counter()
    psutil.cpu_percent()
    report = drive(load, seconds).report() if photos else drive_with_wrk(load, seconds)
    elapsed_s = time.perf_counter() - started_s
    used, busy_s = meter.read(), psutil.cpu_percent() / 100 * elapsed_s * CORES
    # Of this process, and of its children that have ended: user, system; elapsed time is the last.
    load_s = sum(os.times()[:4]) - sum(load_before[:4])
    per_request_us = 1e6 / (report.requests_per_s * elapsed_s)
    kinds_us = {
        kind: [round(spent_s * per_request_us, 2) for spent_s in (usage.own_s, usage.kernel_s)]
        for kind, usage in used.items()
    }
    cpu_us, load_us = sum(map(sum, kinds_us.values())), load_s * per_request_us
    others_s = max(0.0, busy_s - (cpu_us + load_us) / per_request_us)
    return {
        **asdict(report),
        "cpu_us": round(cpu_us, 2),
        "kinds_us": kinds_us,
        "load_us": round(load_us, 2),
        "others_percent": round(100 * others_s / elapsed_s / CORES, 1),
    }


def agreement(ours: Torchferry, theirs: Server, photos: list[Path]) -> dict[str, Any]:
    """Compares both servers' answers to the photos; the difference is the largest of two scores."""
    differences, has_same_five = [], True
    for photo in photos:
        one, other = (
            json.loads(server.ask(RESNET, photo.read_bytes())) for server in (ours, theirs)
        )
        has_same_five &= set(one) == set(other)
        differences += [abs(one.get(name, 0.0) - other.get(name, 0.0)) for name in one | other]
    return {
        "photos": len(photos),
        "has_same_five": has_same_five,
        "largest_difference": round(max(differences), 6),
    }


# --- what it comes to


def in_turns(
    name: str,
    servers: Sequence[Participant],
    photos: list[Path],
    warm_up_s: float,
    *,
    is_short: bool,
) -> dict[str, Any]:
    """Returns the runs, run i of each server of turn i, and their medians, with their origin."""
    workload = WORKLOADS[name]
    seconds, turns = (SHORT_SECONDS, SHORT_TURNS) if is_short else (workload.seconds, TURNS)
    for server in servers:
        if isinstance(server, Server) and not photos:
            answer = server.ask(workload.model, _CONTENT)
            if answer != workload.expected(_CONTENT):
                raise BenchmarkError(f"{server.name} answers {name}: {answer[:200]!r}")
        run_once(workload, server, photos, warm_up_s)
    measured: dict[str, dict[str, Any]] = {
        server.name: {"version": server.version, "runs": []} for server in servers
    }
    for turn, server in itertools.product(range(1, turns + 1), servers):
        run = run_once(workload, server, photos, seconds)
        measured[server.name]["runs"].append(run)
        rate = f"{run['requests_per_s']:,.0f} requests/s, p50 {run['p50_ms']:.2f} ms"
        print(f"{workload.title}, {turn} of {turns}: {server.name}: {rate}", flush=True)
    for each in measured.values():
        each["median"] = median_run(each["runs"])
    ours = measured[OURS]
    for each in measured.values():
        if each is not ours:
            rates = [one["median"]["requests_per_s"] for one in (ours, each)]
            each["ratio"] = round(rates[0] / rates[1], 3)
            each["ratios_of_turns"] = [
                round(our["requests_per_s"] / their["requests_per_s"], 3)
                for our, their in zip(ours["runs"], each["runs"], strict=True)
            ]
    others_percent = [run["others_percent"] for each in measured.values() for run in each["runs"]]
    setting = ("model", "connections", "body_bytes")
    return {
        "pairs": turns,
        "seconds": seconds,
        "title": workload.title,
        **records.origin(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "others_percent": round(statistics.median(others_percent), 1),
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
        is_same, difference = answers["has_same_five"], answers["largest_difference"]
        text = (
            f"{'the' if is_same else 'not the'} same five best classes as {TORCHSERVE} for "
            f"{answers['photos']} photos, scores within {difference:g} (at most "
            f"{SCORE_TOLERANCE:g})"
        )
        yield Verdict(is_same and difference <= SCORE_TOLERANCE, text)
    errors = servers[OURS]["median"]["errors"]
    text = f"{errors} requests answered with an error by {OURS} (at most 0)"
    yield Verdict(errors == 0, text)


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
    ours = servers[OURS]["median"]
    kinds = [kind for kind in ("ingress", "Redis", "workers") if kind in ours["kinds_us"]]
    spent = ", ".join("{} {:.1f} + {:.1f}".format(kind, *ours["kinds_us"][kind]) for kind in kinds)
    # Of a failure its kind and the first line of pip or the server.
    left_out = [
        f"\n- left out: {server}: {' '.join(why.splitlines()[:2])}"
        for server, why in record["left_out"].items()
    ]
    slower = [
        f"\n- **slower than {server}**, which does {1 / measured['ratio']:.2f} x as much"
        for server, measured in servers.items()
        if measured.get("ratio", 1.0) < 1
    ]
    return (
        f"`python -m benchmarks.compare --workload {name}` at {records.told(record)}; "
        f"{record['pairs']} turns of {record['seconds']:g} s each. Other processes took "
        f"{record['others_percent']:g} % of the machine.\n\n{records.table_of(HEADS, rows)}\n\n"
        f"Of torchferry in own code + kernel, us: {spent}; load: {ours['load_us']:.1f}.\n"
        f"{''.join(left_out + slower)}"
    ).rstrip()


if __name__ == "__main__":
    parser = records.parser_of("compare")
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=REQUEST_PATH)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, help="beside torchferry")
    parser.add_argument("--before", type=Path, help="another working tree, measured as well")
    options = parser.parse_args()
    sys.exit(records.guarded(lambda: measure(options)))
