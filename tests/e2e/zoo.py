"""A model for each way in which a row can come and an answer can go; served by the tests beside it.

Nothing here imports torch: that would cost each worker seconds.
"""

import dataclasses
import os
import time
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import numpy as np
import PIL.Image
import pydantic

import ferry


@ferry.model
def untyped(batch):
    return [type(row).__name__ for row in batch]


@ferry.model
def raw(batch: list[bytes]) -> list[bytes]:
    return [row[::-1] for row in batch]


@ferry.model
def shout(batch: list[str]) -> list[str]:
    """Says it louder.

    And this line is not in the summary.
    """
    return [row.upper() for row in batch]


@ferry.model
def keys(batch: list[dict]) -> list[list[str]]:
    return [sorted(row) for row in batch]


@ferry.model
def values(batch: list[Any]) -> list[Any]:
    return batch


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@ferry.model
def points(batch: list[Point]) -> list[Point]:
    return [Point(row.y, row.x) for row in batch]


class Named(TypedDict):
    name: str


@ferry.model
def names(batch: list[Named]) -> list[str]:
    return [row["name"] for row in batch]


class Person(pydantic.BaseModel):
    age: int


@ferry.model
def people(batch: list[Person]) -> list[Person]:
    return [Person(age=row.age + 1) for row in batch]


@ferry.model
def thumbnails(batch: list[PIL.Image.Image]) -> list[PIL.Image.Image]:
    return [row.resize((row.width // 2, row.height // 2)) for row in batch]


@ferry.model
def arrays(batch: list[np.ndarray]):
    return np.stack([np.asarray([row.sum(), row.ndim]) for row in batch])


class Captioned(msgspec.Struct):
    image: PIL.Image.Image
    caption: str
    times: int = 1


@ferry.model
def captions(batch: list[Captioned]) -> list[dict]:
    return [{"text": row.caption * row.times, "width": row.image.width} for row in batch]


@ferry.model(batch_size=4, max_batch_delay=300, batch_policy="fixed")
def choosy(batch: list[str]):
    """Refuses a row by an exception in the list, or by one that is raised."""
    if "raise" in batch:
        raise ferry.BadInput("raised")
    if "crash" in batch:
        return _crash()
    time.sleep(0.01)
    return [ferry.BadInput("too dark") if row == "dark" else len(batch) for row in batch]


def _crash():
    return {}["missing"]


@ferry.model
def answers(batch: list[str]):
    return [ferry.Answer(f"<p>{row}</p>", "text/html", {"x-row": row}, status=201) for row in batch]


@ferry.model
def told(batch: list[str], requests: ferry.Requests):
    left_s = [deadline - time.monotonic() for deadline in requests.deadlines_s]
    columns = zip(requests.ids, requests.headers, requests.queries, left_s, strict=True)
    return [
        {"id": one, "agent": headers.get("user-agent"), "query": query, "left_s": left}
        for one, headers, query, left in columns
    ]


@ferry.model
def counting(batch: list[int]):
    for number in batch:
        yield [str(number)]
        yield [None]
        yield ["!"]


@ferry.model
def short(batch: list[str]):
    return batch[1:]


@ferry.model
def unfit(batch: list[str]):
    return [object() for _ in batch]


@ferry.model
def measured(batch: list[str]):
    ferry.count("letters", sum(map(len, batch)))
    ferry.observe("score", 0.5)
    return batch


class Lively(ferry.Model):
    """Has a life of its own."""

    batch_size = 3
    warm_up = ("a", "bb")

    def load(self, device: str) -> None:
        self.device = device
        self.sizes: list[int] = []

    def predict(self, batch: list[str]) -> list[dict]:
        self.sizes.append(len(batch))
        return [{"device": self.device, "sizes": self.sizes} for _ in batch]

    def unload(self) -> None:
        Path(os.environ["UNLOADED"]).touch()


async def slow(batch):
    return batch
