"""The options that both forms of `ferry shadow` share."""

from dataclasses import dataclass

import click

from ferry.api import INFERENCE_TOKEN_VARIABLE, token_header
from ferry.options import NumberRange, json_option, option_group
from ferry.shadow.comparison import Tolerance
from ferry.shadow.result import Result
from ferry.shadow.target import Target

OLD_TOKEN_VARIABLE = "FERRY_OLD_TOKEN"  # noqa: S105 - its name


comparison_options = option_group(
    click.option("--old", help="URL of the server that is trusted."),
    click.option("--new", help="URL of the server that is tried."),
    click.option(
        "--tolerance",
        type=NumberRange(0, 1),
        default=1e-4,
        show_default=True,
        help="How far numbers in JSON may differ, relative to the larger one. Two integers are "
        "equal or not.",
    ),
    click.option(
        "--near-zero",
        type=NumberRange(0),
        default=1e-8,
        show_default=True,
        help="Numbers that are no farther apart than this are equal, too.",
    ),
    click.option(
        "--ignore",
        multiple=True,
        metavar="PATH",
        help="JSON path that may differ, such as $.time or $[*].id. May be repeated.",
    ),
    click.option(
        "--connections",
        type=click.IntRange(1, 1000),
        default=4,
        show_default=True,
        help="Most requests at a time to the new server.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=NumberRange(0, 86_400, min_open=True),
        default=120.0,
        show_default=True,
        help="Seconds to wait for an answer.",
    ),
    json_option,
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Holds the values of these options."""

    old: str | None
    new: str | None
    tolerance: float
    near_zero: float
    ignore: tuple[str, ...]
    connections: int
    timeout_s: float
    as_json: bool

    def result(self) -> Result:
        return Result(Tolerance(self.tolerance, self.near_zero, self.ignore))

    def targets(self) -> tuple[Target, Target]:
        if not self.old or not self.new:
            raise click.UsageError("give --old URL and --new URL")
        new_token = token_header(INFERENCE_TOKEN_VARIABLE) or token_header()
        try:
            old = Target(self.old, token_header(OLD_TOKEN_VARIABLE), self.timeout_s)
            return old, Target(self.new, new_token, self.timeout_s)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
