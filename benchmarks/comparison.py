"""What a comparison found, as a record; everything said later is read off the record."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.contest import Pairs
from benchmarks.load import LoadReport
from benchmarks.records import origin
from benchmarks.workloads import SCORE_TOLERANCE, Answers, Bar, Workload

OURS = "torchferry"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one bar is reached; None where its server was not measured."""

    is_reached: bool | None
    text: str


def to_record(
    workload: Workload,
    measured: Sequence[Pairs],
    left_out: Mapping[str, str],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns everything that a claim citing this measurement needs, as a JSON object.

    Args:
        workload: what was compared.
        measured: the runs beside each other server.
        left_out: those that could not be measured, and why.
        about: what else to say: versions, seconds, load average.
    """
    beside = {pairs.rival: _beside(pairs) for pairs in measured}
    verdicts = [verdict for bar in workload.bars for verdict in _judge(bar, beside, left_out)]
    return {
        "title": workload.title,
        **origin(),
        **about,
        "setting": workload.setting(),
        "beside": beside,
        "left_out": dict(left_out),
        "verdicts": [asdict(verdict) for verdict in (*verdicts, _no_errors(beside))],
    }


def median_run(runs: Sequence[LoadReport]) -> LoadReport:
    """Returns the median of each figure by itself; adds up errors."""
    return LoadReport(
        requests_per_s=statistics.median(run.requests_per_s for run in runs),
        p50_ms=round(statistics.median(run.p50_ms for run in runs), 3),
        p99_ms=round(statistics.median(run.p99_ms for run in runs), 3),
        errors=sum(run.errors for run in runs),
    )


def is_reached(record: Mapping[str, Any]) -> bool | None:
    """Returns whether all bars are reached; None when one was not judged and none missed."""
    found = [verdict["is_reached"] for verdict in record["verdicts"]]
    if False in found:
        return False
    return None if None in found else True


def _beside(pairs: Pairs) -> dict[str, Any]:
    ours, theirs = median_run(pairs.ours), median_run(pairs.theirs)
    both = zip(pairs.ours, pairs.theirs, strict=True)
    record = {
        "version": pairs.version,
        "ratio": round(ours.requests_per_s / theirs.requests_per_s, 3),
        "ratios_of_pairs": [round(a.requests_per_s / b.requests_per_s, 3) for a, b in both],
        "p99_ratio": round(ours.p99_ms / theirs.p99_ms, 3) if theirs.p99_ms else None,
        "medians": {OURS: asdict(ours), pairs.rival: asdict(theirs)},
        "runs": {
            OURS: [asdict(run) for run in pairs.ours],
            pairs.rival: [asdict(run) for run in pairs.theirs],
        },
    }
    return record | ({"answers": _agreement(pairs)} if pairs.answers else {})


def _agreement(pairs: Pairs) -> dict[str, Any]:
    """Compares the answers to the photos; the difference is the largest of two scores."""
    differences = [
        abs(ours.get(name, 0.0) - theirs.get(name, 0.0))
        for ours, theirs in pairs.answers
        for name in {*ours, *theirs}
    ]
    return {
        "photos": len(pairs.answers),
        "has_same_five": all(set(ours) == set(theirs) for ours, theirs in pairs.answers),
        "has_same_best": all(next(iter(a)) == next(iter(b)) for a, b in pairs.answers),
        "largest_difference": round(max(differences), 6),
    }


def _judge(bar: Bar, beside: Mapping[str, Any], left_out: Mapping[str, str]) -> list[Verdict]:
    if bar.rival not in beside:
        # Not asked for, or asked for and not to be had.
        return [Verdict(None, f"{bar.rival} was not measured")] if bar.rival in left_out else []
    found = beside[bar.rival]
    ratio = found["ratio"]
    text = f"{ratio:.2f} x {bar.rival}'s requests/s (at least {bar.least_ratio:g})"
    verdicts = [Verdict(ratio >= bar.least_ratio, text)]
    if bar.most_p99_ratio is not None:
        p99_ratio = found["p99_ratio"]
        text = f"{p99_ratio:.2f} x {bar.rival}'s p99 (at most {bar.most_p99_ratio:g})"
        verdicts.append(Verdict(p99_ratio <= bar.most_p99_ratio, text))
    if bar.answers:
        verdicts.append(_judge_answers(bar.answers, bar.rival, found["answers"]))
    return verdicts


def _judge_answers(asked: Answers, rival: str, found: Mapping[str, Any]) -> Verdict:
    photos = f"for {found['photos']} photos"
    if asked == "best":
        word = "the same" if found["has_same_best"] else "not the same"
        return Verdict(found["has_same_best"], f"{word} best class as {rival} {photos}")
    word = "the same" if found["has_same_five"] else "not the same"
    difference = found["largest_difference"]
    text = (
        f"{word} five best classes as {rival} {photos}, "
        f"scores within {difference:g} (at most {SCORE_TOLERANCE:g})"
    )
    return Verdict(found["has_same_five"] and difference <= SCORE_TOLERANCE, text)


def _no_errors(beside: Mapping[str, Any]) -> Verdict:
    if not beside:
        return Verdict(None, "nothing was measured")
    errors = sum(found["medians"][OURS]["errors"] for found in beside.values())
    return Verdict(errors == 0, f"{errors} requests answered with an error by {OURS} (at most 0)")
