r"""An open request's record: a line of text, then its bytes, as a field of one hash.

    <attempts> <owner> <chunks> <queued_us> <age_us> <ttl_ms> <ingress id>\n<wire>

The fields, which scripts find by their places:

    attempts   how many have failed
    owner      of a crash suspect that waits: the worker that had it, and may still answer it; `-`
               for all others, which belong to the worker that has them leased
    chunks     how many pieces of the answer have been sent; from the first one on, no wire is kept
    queued_us  Redis' time of the submit
    age_us     how long it had been at the ingress by then; `-` where Redis had lost it before
    ttl_ms     from the submit to the deadline
    ingress id of the one that waits for the reply; `job` where nobody does, and the reply is kept
    wire       the request's bytes; empty if they have a key of their own
"""

from msgspec import Struct


class OpenRecord(Struct, frozen=True, gc=False):
    """The fields of a record that a worker needs."""

    attempts: int
    queued_us: int
    age_us: int
    ingress_id: str
    wire: bytes


def rest_of_record(ingress_id: str, ttl_ms: int, age_us: int | None, wire: bytes) -> bytes:
    """Returns the part of a record that the ingress knows; `submit.lua` puts the rest in front."""
    age = "-" if age_us is None else age_us
    return f"{age} {ttl_ms} {ingress_id}\n".encode() + wire


def read_record(record: bytes) -> OpenRecord:
    """Parses a record that `claim.lua` has found well-formed."""
    line, _, wire = record.partition(b"\n")
    attempts, _, _, queued_us, age_us, _, ingress_id = line.split(b" ")
    age = int(age_us) if age_us.isdigit() else 0
    ingress = ingress_id.decode(errors="replace")
    return OpenRecord(int(attempts), int(queued_us), age, ingress, wire)
