"""Pages with commands, run as they stand: on scratch ports and without the network.

A comment above a block says what it is: `run` is executed, `server` is started and stays up,
`instead` follows a Ctrl-C, `redis` needs one, `tests` are a handler's own, `torchserve` makes that
command (`test_e2e_torchserve.py`), `quick` is TorchServe's quick start, `setup` is for people.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torchvision.models import resnet152

from tests.chaos.tcp_redis import TcpRedis
from tests.e2e.clients import Clients, needs_curl
from tests.e2e.ferry_process import FERRY, MARK, FerryProcess, processes_of
from tests.e2e.tiny_models import put_in_cache
from tests.ports import free_ports
from tests.support import eventually

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^<!-- (?P<words>[a-z ]+) -->\n```sh\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
FILE = re.compile(r"^<!-- file (\S+) -->\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANY_SHELL = re.compile(r"^```sh$", re.MULTILINE)
# What torchvision would fetch; random weights of the same shape stand in for it.
CHECKPOINT = "resnet152-f82ba261.pth"
HANDLERS = "docs/handlers.md"
TWO_MODELS = "examples/two_models/README.md"
MOVING = "docs/moving-from-torchserve.md"
JOBS = "docs/jobs.md"
REDIS_IN_README = "redis://redis-host:6379"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Block:
    kinds: frozenset[str]
    text: str


def blocks(document: str = "README.md") -> list[Block]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [Block(frozenset(m["words"].split()), m["text"]) for m in BLOCK.finditer(text)]


class Reader:
    """Somebody who follows the README in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports(3)
        self.ports = {8080: self.port, 9080: free_ports(3)}
        self.mark = uuid.uuid4().hex
        self.servers: list[FerryProcess] = []
        self.redis_url = ""
        shutil.copytree(ROOT / "examples", folder / "examples")
        for config in folder.glob("examples/*/*.yaml"):
            config.write_text(self.adapted(config.read_text()))
        self.environment = {
            "PATH": f"{self._own_bin()}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TORCH_HOME": str(folder / "torch"),
            "FERRY_INFERENCE_ADDRESS": f"http://127.0.0.1:{self.port}",
            "FERRY_MANAGEMENT_ADDRESS": f"http://127.0.0.1:{self.port + 1}",
            "FERRY_METRICS_ADDRESS": f"http://127.0.0.1:{self.port + 2}",
            "FERRY_INFERENCE_URL": f"http://127.0.0.1:{self.port}",
            "FERRY_MANAGEMENT_URL": f"http://127.0.0.1:{self.port + 1}",
        }

    def _own_bin(self) -> Path:
        """Makes the folder in which the command `torchserve` comes to lie, beside `ferry`."""
        place = self.folder / "bin"
        place.mkdir()
        (place / "ferry").symlink_to(FERRY)
        return place

    def fetch_weights(self) -> None:
        checkpoints = self.folder / "torch" / "hub" / "checkpoints"
        checkpoints.mkdir(parents=True)
        torch.save(resnet152(weights=None).state_dict(), checkpoints / CHECKPOINT)

    def adapted(self, text: str) -> str:
        for base, port in self.ports.items():
            text = text.replace(f"--port-base {base}", f"--port-base {port}")
            for offset in range(3):
                text = text.replace(f"localhost:{base + offset}", f"127.0.0.1:{port + offset}")
        text = text.replace("ferry serve ", f"ferry serve --port {self.port} ")
        return text.replace(REDIS_IN_README, self.redis_url or REDIS_IN_README)

    def run(self, text: str) -> str:
        """What the commands print; a failing one fails the test."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        folders = {"TMPDIR": str(temporary), "FERRY_WORK_DIR": str(self.folder / "old")}
        name = uuid.uuid4().hex
        printed, complaints = temporary / f"{name}.out", temporary / f"{name}.err"
        # Files and not pipes: a server in the background inherits them, as it does a terminal.
        with printed.open("w") as output, complaints.open("w") as errors:
            done = subprocess.run(
                ["timeout", "200", "bash", "-euo", "pipefail", "-c", self.adapted(text)],
                cwd=self.folder,
                env={**os.environ, **self.environment, **folders, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                check=False,
            )
        said = f"{text}\n{printed.read_text()}\n{complaints.read_text()}"
        assert done.returncode == 0, said
        # curl calls any answer a success. A failed job has its error inside.
        assert '{\n  "code":' not in printed.read_text(), said
        return printed.read_text()

    def serve(self, text: str) -> None:
        command = f"cd {shlex.quote(str(self.folder))} && exec {self.adapted(text)}"
        server = FerryProcess(
            self.folder, ["-c", command], program="bash", environment=self.environment
        )
        self.servers.append(server)
        lines = {"ferry up": "Model server started.", "ferry serve": "Ctrl-C ends."}
        server.wait_for_line(lines.get(" ".join(text.split()[:2]), "started"))

    def follow(self, page: Iterable[Block]) -> str:
        """Runs and serves what the blocks say, in their order; returns what was printed."""
        printed = ""
        for block in page:
            if "instead" in block.kinds:
                self.stop()
            if "server" in block.kinds:
                self.serve(block.text)
            elif "run" in block.kinds:
                printed += self.run(block.text)
        return printed

    def stop(self) -> None:
        """Ctrl-C in each terminal, the last one first."""
        while self.servers:
            self.servers.pop().stop_cleanly()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()
        for line in processes_of(self.mark):
            os.kill(int(line.split()[0]), signal.SIGKILL)


@pytest.fixture
def reader(tmp_path):
    person = Reader(tmp_path)
    yield person
    person.kill()


@pytest.fixture
def redis_url():
    """A Redis that other machines could reach."""
    with TcpRedis() as server:
        yield f"redis://127.0.0.1:{server.port}"


@pytest.mark.parametrize(
    ("document", "least"),
    [
        ("README.md", 10),
        (HANDLERS, 4),
        (TWO_MODELS, 3),
        (MOVING, 19),
        (JOBS, 10),
        ("docs/container.md", 6),
    ],
)
def test_document_marks_every_shell_block(document, least):
    # Given
    text = (ROOT / document).read_text(encoding="utf-8")
    # When / Then: a block that is never run rots
    assert len(blocks(document)) == len(ANY_SHELL.findall(text)) >= least


def test_readme_names_only_make_targets_that_exist():
    # Given
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"\bmake ([a-z-]+)", text))
    # When
    done = subprocess.run(
        ["make", "--dry-run", *sorted(targets)], cwd=ROOT, capture_output=True, check=False
    )
    # Then
    assert {"demo", "test", "install"} <= targets
    assert done.returncode == 0, done.stderr.decode()


@needs_curl
def test_readme_works_as_pasted(reader):
    # Given its file
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, content in FILE.findall(text):
        (reader.folder / name).write_text(content)
    page = [block for block in blocks() if not {"redis", "compose"} & block.kinds]
    [serve] = (block.text for block in page if "serve" in block.kinds)
    [ask] = (block.text for block in page if "ask" in block.kinds)
    # When the model of five lines is served and asked
    reader.serve(serve)
    numbers = json.loads(reader.run(ask))
    # Then it answers, and the server has printed this very line
    assert len(numbers) == 2
    said = reader.servers[0].log_path.read_text().replace("localhost", "127.0.0.1")
    assert reader.adapted(ask).strip() in said.replace("http://", "")
    # When the rest is run: another server, the table of batches, and a job
    printed = reader.follow(page)
    # Then
    assert re.search(r"^ *64 +32 ", printed, re.MULTILINE)
    assert '"status": "queued"' in printed
    reader.stop()


@needs_curl
def test_torchserves_quick_start_works_as_pasted(reader):
    # Given
    reader.fetch_weights()
    # When
    printed = reader.follow(block for block in blocks(MOVING) if "quick" in block.kinds)
    # Then
    assert 'Model \\"resnet-152\\" Version: 1.0 registered with 0 initial workers' in printed
    assert 'resnet-152-batch_v2\\" Version: 1.0 registered with 1 initial workers' in printed
    assert '"status": "Healthy"' in printed
    assert "2 READY" in reader.run("ferry status")
    answer = json.loads(reader.run("ferry predict --json resnet-152-batch_v2 examples/kitten.jpg"))
    assert len(answer[0]["answer"]) == 5
    reader.stop()


@needs_curl
def test_handler_of_your_own_works_as_pasted(reader):
    # When
    printed = reader.follow(blocks(HANDLERS))
    # Then
    scores = re.search(r'\{\s+"scores".*?\}', printed, re.DOTALL)
    assert len(json.loads(scores[0])["scores"]) == 2
    assert printed.endswith("136")
    with pytest.raises(AssertionError, match=r'Send {\\"numbers'):
        reader.run("curl localhost:8080/predictions/linear -d text")
    reader.stop()


def test_handlers_own_tests_run_as_pasted(reader):
    # Given the handler, and no server
    made, *_ = (block for block in blocks(HANDLERS) if "run" in block.kinds)
    [tests] = (block for block in blocks(HANDLERS) if "tests" in block.kinds)
    reader.run(made.text)
    # When / Then
    assert "1 passed" in reader.run(tests.text)


@needs_curl
def test_two_models_answer_behind_one_as_pasted(reader):
    # Given
    assert '"digit": 0' in reader.follow(blocks(TWO_MODELS))
    pictures = sorted(reader.folder.glob("build/quick/held_out/*.png"))[:32]
    bodies = [picture.read_bytes() for picture in pictures]
    # When
    with Clients(f"http://127.0.0.1:{reader.port}", 33) as clients:
        *answers, bad = clients.ask("/predictions/cascade", [*bodies, b"no picture"]).answers
    # Then most digits are right, both models had the last word, and a bad picture fails alone
    digits = [str(json.loads(answer.body)["digit"]) for answer in answers]
    labels = [picture.stem[-1] for picture in pictures]
    assert sum(map(str.__eq__, digits, labels)) >= 30
    assert {answer.headers["x-model"] for answer in answers} == {"quick", "careful"}
    assert (bad.status, bad.headers["x-model"]) == (400, "quick")
    reader.stop()


@needs_curl
def test_move_from_torchserve_works_as_pasted_and_back(reader):
    # Given `torchserve`, which is ours here, as the old server
    [command] = (block for block in blocks(MOVING) if "torchserve" in block.kinds)
    reader.run(command.text)
    # When
    printed = reader.follow(block for block in blocks(MOVING) if "quick" not in block.kinds)
    # Then both servers answered, with the same; and the old one is back where it was
    assert printed.count('"digit": 0') == 2
    assert printed.count('\nts_inference_requests_total{model_name="digits"') == 2
    assert reader.servers == []
    assert "digits" in reader.run("curl localhost:8081/models/digits")
    reader.run("torchserve --stop")


@needs_curl
def test_jobs_are_done_as_pasted(reader):
    # When
    printed = reader.follow(blocks(JOBS))
    # Then one was accepted, and another one's result and end were seen
    assert "202 Accepted" in printed
    assert '"digit": 5' in printed
    assert '"status": "succeeded"' in printed
    # And the one that was waited for, those of a folder, and the one that failed
    assert '"digit": 0' in printed
    scores = (reader.folder / "scores.jsonl").read_text().splitlines()
    names, statuses, answers = zip(*map(json.loads, scores), strict=True)
    right = [str(answer["digit"]) == name[-5] for name, answer in zip(names, answers, strict=True)]
    assert (len(scores), set(statuses)) == (360, {200})
    assert sum(right) >= 340
    assert '"status": "failed"' in printed
    assert printed.count('"jobs": 1') >= 1
    reader.stop()


def fenced(document: str) -> tuple[list[str], list[str]]:
    """Returns a page's programs and its commands, in their order."""
    found = FENCED.findall((ROOT / document).read_text(encoding="utf-8"))
    programs = [text for kind, text in found if kind == "python"]
    return programs, [text for kind, text in found if kind == "sh" and "pip install" not in text]


def test_first_model_works_as_pasted(reader):
    # Given the files of the page, a picture, and a tiny model in place of the large one
    programs, commands = fenced("docs/first-model.md")
    names = ("model.py", "sentiment.py", "brightness.py", "test_brightness.py")
    for name, program in zip(names, programs, strict=True):
        (reader.folder / name).write_text(program)
    shutil.copy(ROOT / "examples" / "kitten.jpg", reader.folder / "photo.jpg")
    put_in_cache(reader.folder / "cache", "sentiment")
    reader.environment |= {"HF_HOME": str(reader.folder / "cache"), "HF_HUB_OFFLINE": "1"}
    # When they are served
    reader.serve("ferry serve model.py sentiment.py brightness.py")
    numbers, sentiment, brightness, packed = map(reader.run, commands)
    # Then the commands do what the page says, and so does its test
    assert len(json.loads(numbers)) == 2
    assert json.loads(sentiment)["label"] in ("POSITIVE", "NEGATIVE")
    assert 0 < json.loads(brightness)["brightness"] < 255
    assert packed.startswith("Wrote brightness.mar")
    assert "1 passed" in reader.run(f"{sys.executable} -m pytest -q -p no:cacheprovider")
    reader.stop()


def test_examples_of_the_client_run(server, scripted, reader):
    # Given a model that echoes
    programs, commands = fenced("docs/client.md")
    shutil.rmtree(reader.folder / "examples")
    (reader.folder / "examples").mkdir()
    (reader.folder / "examples" / "kitten.jpg").write_text('{"tabby": 0.9}')
    addresses = {"INFERENCE": server.inference, "MANAGEMENT": server.management}
    reader.environment |= {f"FERRY_{name}_URL": url for name, url in addresses.items()}
    program = "\n".join(programs).replace("http://localhost:8080", server.inference)
    (reader.folder / "program.py").write_text(program)
    for words in (f"{sys.executable} program.py", "\n".join(commands)):
        # When / Then
        with server.model(scripted, "resnet-152", batch_size=8):
            assert "tabby" in reader.run(words)
    assert (reader.folder / "results" / "kitten.jpg.out").read_text() == '{"tabby": 0.9}'


def test_readme_second_machine_takes_part_when_it_starts(reader, redis_url):
    # Given a server with a model
    reader.redis_url = redis_url
    reader.run("mkdir -p model_store; python -m examples.digits.build --model-store model_store")
    first, second = (block.text for block in blocks() if "redis" in block.kinds)
    reader.serve(first)
    reader.run("ferry models register digits.mar --initial-workers 1")
    # When
    reader.serve(second)

    def nodes() -> int:
        return len(json.loads(reader.run("ferry status --json"))["nodes"])

    # Then
    eventually(lambda: nodes() == 2, 30)
    reader.stop()
