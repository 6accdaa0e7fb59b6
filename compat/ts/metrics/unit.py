"""What the units that handlers abbreviate are called in full."""

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
    """The same as TorchServe's handlers find it: `Units().units`."""

    def __init__(self) -> None:
        self.units = dict(NAMES)


def full_name(unit: str | None) -> str:
    """Returns the unit in full; one that is not known stays as it is."""
    return NAMES.get(unit, str(unit))
