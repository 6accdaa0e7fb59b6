"""Echoes each body, once per batch after the pause that a file of the archive names."""

import time
from pathlib import Path


def handle(data, context):
    if data is None:
        return None
    time.sleep(float(Path("pause_ms").read_text(encoding="utf-8")) / 1000)
    return [bytes(row["body"]).decode(errors="replace") for row in data]
