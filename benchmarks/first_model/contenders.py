"""Who is compared, and what a new user of each does."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring.records import CACHE, OURS
from benchmarks.servers.environments import environment_python
from benchmarks.servers.server import ferry_command

PROGRAMS = Path(__file__).parent / "programs"
PORT_IN_PROGRAM = "port=8000"
ROW = "[1, 2, 3, 4]"


@dataclass(frozen=True, slots=True)
class Contender:
    """A server, its program, and the steps from an empty machine with Python to an answer.

    A step is a command or a file that the user writes. The request is one, too, but where the
    server prints it, ready to be pasted.
    """

    name: str
    version: str
    program: str
    # `bin` is the folder of its environment's programs, `port` where it is to listen.
    command: Sequence[str]
    path: str
    body: str
    steps: Sequence[str]
    page: str
    reload: str

    def lines(self) -> int:
        """Counts the program's lines that are neither blank nor only a comment."""
        text = (PROGRAMS / self.program).read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines()]
        return sum(bool(line) and not line.startswith("#") for line in lines)

    def bin(self) -> Path:
        """Returns the folder with the server's command, after installing it where it is missing."""
        if self.name == OURS:
            return Path(ferry_command()).parent
        package = f"{self.name.lower()}=={self.version}"
        return environment_python(CACHE, package.replace("==", "-"), [[package]]).parent

    def install_program(self, folder: Path, port: int) -> list[str]:
        """Puts the program into this folder; returns the command that serves it on this port."""
        copy = Path(shutil.copy(PROGRAMS / self.program, folder))
        text = copy.read_text(encoding="utf-8").replace(PORT_IN_PROGRAM, f"port={port}")
        copy.write_text(text, encoding="utf-8")
        return [word.format(bin=self.bin(), port=port) for word in self.command]


CONTENDERS = (
    Contender(
        name=OURS,
        version="",
        program="model.py",
        command=("{bin}/ferry", "serve", "model.py", "--port", "{port}"),
        path="/predictions/model",
        body=ROW,
        steps=("make install", "model.py", "ferry serve model.py"),
        page="try it, live batches, Swagger",
        reload="automatic, no request lost",
    ),
    Contender(
        name="LitServe",
        version="0.2.19",
        program="litserve_server.py",
        command=("{bin}/python", "litserve_server.py"),
        path="/predict",
        body=f'{{"input": {ROW}}}',
        steps=("pip install litserve torch", "server.py", "python server.py", "the request"),
        page="Swagger",
        reload="restart",
    ),
    Contender(
        name="BentoML",
        version="1.4.40",
        program="bentoml_service.py",
        command=("{bin}/bentoml", "serve", "bentoml_service:Linear", "--port", "{port}"),
        path="/predict",
        body=f'{{"rows": [{ROW}]}}',
        steps=("pip install bentoml torch", "service.py", "bentoml serve", "the request"),
        page="Swagger",
        reload="`--reload`, restarts",
    ),
    Contender(
        name="mosec",
        version="0.9.8",
        program="mosec_server.py",
        command=("{bin}/python", "mosec_server.py", "--port", "{port}"),
        path="/inference",
        body=ROW,
        steps=("pip install mosec torch", "server.py", "python server.py", "the request"),
        page="Swagger",
        reload="restart",
    ),
)
