"""The options for load that both forms of `ferry bench` share."""

from typing import IO, Any

import click

from ferry.api import INFERENCE_TOKEN_VARIABLE, token_header
from ferry.load.driver import Load
from ferry.options import NumberRange, check_header_value, option_group

_DAY_S = 86_400
_CONNECTIONS = 16
# So many that requests leave on time. Each is an open file, of which most processes may have 1024.
_CONNECTIONS_OF_OPEN_LOOP = 1000

load_options = option_group(
    click.option(
        "--body",
        type=click.File("rb"),
        help="File that each request sends as its body. Default: an empty body.",
    ),
    click.option(
        "--content-type",
        default="",
        callback=check_header_value,
        help="Content type of the body. Default: none.",
    ),
    click.option(
        "--connections",
        type=click.IntRange(1),
        help="Most requests that are open at a time; others wait, which counts as latency. "
        f"[default: {_CONNECTIONS}; {_CONNECTIONS_OF_OPEN_LOOP} with --rate]",
    ),
    click.option(
        "--rate",
        "rate_per_s",
        type=NumberRange(0, 1_000_000),
        default=0.0,
        help="Requests per second. Default: as fast as they are answered.",
    ),
    click.option(
        "--duration",
        "duration_s",
        type=NumberRange(0, _DAY_S, min_open=True),
        default=10.0,
        show_default=True,
        help="Seconds to measure.",
    ),
    click.option(
        "--warmup",
        "warmup_s",
        type=NumberRange(0, _DAY_S),
        default=1.0,
        show_default=True,
        help="Seconds of load before that, which are not measured.",
    ),
    click.option(
        "--metrics-url",
        envvar="FERRY_METRICS_URL",
        show_envvar=True,
        default="http://127.0.0.1:8082/metrics",
        show_default=True,
        help="Where the server tells how large its batches were.",
    ),
)


def make_load(
    url: str, body: IO[bytes] | None, content_type: str, connections: int | None, **options: Any
) -> Load:
    """Returns the load that the values of these options describe."""
    headers = {"content-type": content_type} if content_type else {}
    enough = _CONNECTIONS_OF_OPEN_LOOP if options["rate_per_s"] else _CONNECTIONS
    return Load(
        url=url,
        body=body.read() if body else b"",
        headers=headers | (token_header(INFERENCE_TOKEN_VARIABLE) or token_header()),
        connections=connections or enough,
        **options,
    )
