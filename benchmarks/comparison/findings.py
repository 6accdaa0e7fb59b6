"""What a comparison found, as a record; everything said later is read off the record."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.comparison.contest import Measured, Run
from benchmarks.comparison.workloads import SCORE_TOLERANCE, TORCHSERVE, Answers, Bar, Workload
from benchmarks.measuring.records import OURS, origin
from benchmarks.measuring.reports import Verdict

# How a bar names what a median has.
_WORDS = {"requests_per_s": "requests/s", "p50_ms": "p50", "p99_ms": "p99"} | {
    "cpu_us": "processor time per request"
}


def to_record(
    workload: Workload,
    measured: Measured,
    left_out: Mapping[str, str],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns everything that a claim citing this measurement needs, as a JSON object.

    Args:
        workload: what was compared.
        measured: what came of it.
        left_out: servers that could not be measured, and why.
        about: what else to say: versions, seconds, load average.
    """
    servers = {name: _server(name, measured) for name in measured.runs}
    answers = _agreement(measured.answers) if measured.answers else None
    # Those of servers that were not asked for say nothing.
    known = {"", *servers, *left_out}
    verdicts = [_judge(bar, servers) for bar in workload.bars if bar.rival in known]
    if answers and workload.answers:
        verdicts.append(_judge_answers(workload.answers, answers))
    others = [run.others_percent for runs in measured.runs.values() for run in runs]
    errors = sum(run.errors for run in measured.runs[OURS])
    text = f"{errors} requests answered with an error by {OURS} (at most 0)"
    verdicts.append(Verdict(errors == 0, text))
    return {
        "title": workload.title,
        **origin(),
        **about,
        "others_percent": round(statistics.median(others), 1),
        "setting": workload.setting(),
        "servers": servers,
        **({"answers": answers} if answers else {}),
        "left_out": dict(left_out),
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }


def median_run(runs: Sequence[Run]) -> Run:
    """Returns the median of each figure by itself; adds up errors."""

    def median(figure: str, digits: int = 3) -> float:
        return round(statistics.median(getattr(run, figure) for run in runs), digits)

    kinds_us = {
        kind: tuple(
            round(statistics.median(run.kinds_us[kind][part] for run in runs), 2) for part in (0, 1)
        )
        for kind in runs[0].kinds_us
    }
    return Run(
        requests_per_s=median("requests_per_s"),
        p50_ms=median("p50_ms"),
        p99_ms=median("p99_ms"),
        errors=sum(run.errors for run in runs),
        cpu_us=median("cpu_us", 2),
        kinds_us=kinds_us,
        load_us=median("load_us", 2),
        others_percent=median("others_percent", 1),
    )


def _server(name: str, measured: Measured) -> dict[str, Any]:
    """Returns the figures of one server, and torchferry's requests/s as multiples of its own."""
    runs, ours = measured.runs[name], measured.runs[OURS]
    middle = median_run(runs)
    record = {
        "version": measured.versions[name],
        "median": asdict(middle),
        "runs": [asdict(run) for run in runs],
    }
    if name == OURS:
        return record
    both = zip(ours, runs, strict=True)
    return record | {
        "ratio": round(median_run(ours).requests_per_s / middle.requests_per_s, 3),
        "ratios_of_turns": [round(a.requests_per_s / b.requests_per_s, 3) for a, b in both],
    }


def _agreement(
    answers: Sequence[tuple[Mapping[str, float], Mapping[str, float]]],
) -> dict[str, Any]:
    """Compares the answers to the photos; the difference is the largest of two scores."""
    differences = [
        abs(ours.get(name, 0.0) - theirs.get(name, 0.0))
        for ours, theirs in answers
        for name in {*ours, *theirs}
    ]
    return {
        "photos": len(answers),
        "has_same_five": all(set(ours) == set(theirs) for ours, theirs in answers),
        "has_same_best": all(next(iter(a)) == next(iter(b)) for a, b in answers),
        "largest_difference": round(max(differences), 6),
    }


def _judge(bar: Bar, servers: Mapping[str, Any]) -> Verdict:
    word = _WORDS[bar.figure]
    value = servers[OURS]["median"][bar.figure]
    text = f"{word} of {value:.2f}"
    if bar.rival:
        if bar.rival not in servers:
            return Verdict(None, f"{bar.rival} was not measured")
        value /= servers[bar.rival]["median"][bar.figure]
        text = f"{value:.2f} x {bar.rival}'s {word}"
    if bar.figure == "requests_per_s":
        return Verdict(value >= bar.limit, f"{text} (at least {bar.limit:g})")
    return Verdict(value <= bar.limit, f"{text} (at most {bar.limit:g})")


def _judge_answers(asked: Answers, found: Mapping[str, Any]) -> Verdict:
    photos = f"for {found['photos']} photos"
    if asked == "best":
        word = "the same" if found["has_same_best"] else "not the same"
        return Verdict(found["has_same_best"], f"{word} best class as {TORCHSERVE} {photos}")
    word = "the same" if found["has_same_five"] else "not the same"
    difference = found["largest_difference"]
    text = (
        f"{word} five best classes as {TORCHSERVE} {photos}, "
        f"scores within {difference:g} (at most {SCORE_TOLERANCE:g})"
    )
    return Verdict(found["has_same_five"] and difference <= SCORE_TOLERANCE, text)
