"""Lists jobs for operators, newest first."""

import asyncio
from dataclasses import dataclass
from itertools import chain

from batching.store.jobs.job_records import Job, JobStatus
from batching.store.jobs.job_store import JobStore
from batching.store.redis_errors import AWAY, store_unavailable
from batching.store.registry.registry import Registry

_MOST_LOOKS = 20  # pages of jobs for one page of those that are asked for

# Later than any job.
NEWEST_US = 2**53


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, newest first, and where the next page begins; None at the end."""

    jobs: list[Job]
    next_us: int | None


class JobLists:
    """Looks through the jobs of registered versions. Lives on the broker's event loop."""

    def __init__(self, store: JobStore, registry: Registry) -> None:
        self._store = store
        self._registry = registry

    async def page(self, model: str, status: JobStatus | None, before_us: int, count: int) -> Page:
        """Returns the newest jobs of registered versions before this time.

        Args:
            model: of this model only; empty: of all.
            status: in this status only; None: in any.
            before_us: where the page before ended.
            count: so many at most.
        """
        found: list[Job] = []
        try:
            specs = await asyncio.to_thread(self._registry.specs)
            of_model = [spec.key for spec in specs if model in {"", spec.model_name}]
            for _ in range(_MOST_LOOKS):
                pages = [await self._store.newest(key, before_us, count) for key in of_model]
                newest = sorted(chain(*pages), key=lambda one: one[0], reverse=True)[:count]
                for time_us, job in newest:
                    before_us = time_us
                    if status in {None, job.status}:
                        found.append(job)
                    if len(found) == count:
                        return Page(found, before_us)
                if not newest:
                    return Page(found, None)
        except AWAY as error:
            raise store_unavailable(error) from error
        return Page(found, before_us)
