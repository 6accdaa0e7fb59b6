"""Spells out the units that handlers abbreviate."""

NAMES: dict[str | None, str] = {
    "ms": "Milliseconds",
    "s": "Seconds",
    "percent": "Percent",
    "count": "Count",
    "MB": "Megabytes",
    "GB": "Gigabytes",
    "kB": "Kilobytes",
    "B": "Bytes",
    "": "unit",
    None: "unit",
}


class Units:
    """Holds the names where TorchServe's handlers find them: `Units().units`."""

    def __init__(self) -> None:
        self.units = dict(NAMES)


def full_name(unit: str | None) -> str:
    return NAMES.get(unit, str(unit))
