"""The record of `benchmarks.gpu`: on disk after each point, continued by the next command.

A command may be killed by a time limit, and the points of one table come from several.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpus.gpu_points import Point
from benchmarks.measuring.records import write_record

# Points that differ in one of these do not belong in one table.
_LIKE = ("commit", "versions", "setting", "bar")
_KEY = ("network", "batch_size", "decode", "workers")


class GpuRecord:
    """A head, and one JSON object per point."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path = path
        self._head = head
        self._points = _points_like(head, path)

    @property
    def content(self) -> dict[str, Any]:
        """Returns the whole record as it is on disk, with the points in order."""
        return {**self._head, "points": [self._points[key] for key in sorted(self._points)]}

    def find(self, point: Point) -> dict[str, Any] | None:
        """Returns the point's measurement, by this command or an earlier one."""
        return self._points.get(tuple(getattr(point, name) for name in _KEY))

    def keep(self, measured: Mapping[str, Any]) -> None:
        """Writes this point into the record on disk, instead of the one with the same key."""
        self._points[tuple(measured[name] for name in _KEY)] = dict(measured)
        write_record(self.content, self.path)


def _points_like(head: Mapping[str, Any], path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Points of this very code, measured with the same settings on such a machine; else none."""
    if not path.is_file():
        return {}
    before = json.loads(path.read_text(encoding="utf-8"))
    is_like = head["is_clean"] and before["is_clean"] and _comparable(before) == _comparable(head)
    points = before["points"] if is_like else []
    return {tuple(point[name] for name in _KEY): point for point in points}


def _comparable(record: Mapping[str, Any]) -> list[Any]:
    machine, gpu = record["machine"], record["gpu"] or {}
    return [
        *(record[name] for name in _LIKE),
        *(machine["cpus"], machine["processor"], gpu.get("name")),
    ]
