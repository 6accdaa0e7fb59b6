"""A user's file that uses the client passes `mypy --strict`, and a wrong use of it does not."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

USE = """
import asyncio
from pathlib import Path

import ferry


def score(rows: list[dict[str, float]]) -> list[float]:
    with ferry.Client("http://127.0.0.1:8080", token="t") as client:
        job: ferry.Job = client.submit("m", Path("x.jpg"), idempotency_key="k", priority="high")
        try:
            text: str = job.wait(timeout_s=3).result().text
        except ferry.WaitTimeout:
            job.cancel()
        except ferry.AnswerError as error:
            print(error.status, error.message)
        found = [float(one.json()["score"]) for one in client.map("m", rows, in_flight=8)]
        for either in client.map("m", rows, return_errors=True, on_progress=print):
            if isinstance(either, ferry.FerryError):
                print(either)
            else:
                print(either.status)
    return found


async def later() -> bytes:
    async with ferry.AsyncClient() as client:
        job = await client.submit("m", "text")
        async for one in client.map("m", ["a", "b"]):
            print(one.text)
        return (await job.result(timeout_s=1.5)).content


asyncio.run(later())
"""
MISUSE = """
import ferry

client = ferry.Client(url=1)
client.predict("m", b"", priority="urgent")
client.submit("m", b"", timeout="1")
ferry.Clinet()
for one in client.map("m", [b""], return_errors=True):
    one.text
"""


@pytest.mark.parametrize(("source", "lines"), [(USE, []), (MISUSE, [4, 5, 6, 7, 9])])
def test_use_is_typed_and_misuse_is_found(tmp_path: Path, source: str, lines: list[int]) -> None:
    (tmp_path / "use.py").write_text(source)
    words = ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), "use.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    found = [int(it.split(":")[1]) for it in done.stdout.splitlines() if ": error:" in it]
    assert found == lines, done.stdout
