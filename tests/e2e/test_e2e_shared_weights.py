"""Two workers of a model have its weights in memory once, and outlive the file of them."""

import io
from pathlib import Path

import pytest
import torch

from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer

INPUTS, OUTPUTS = 512, 2048
WEIGHT_BYTES = INPUTS * OUTPUTS * 4
HANDLER = """
import torch
from ts.torch_handler.base_handler import BaseHandler

class Summing(BaseHandler):
    def preprocess(self, data):
        return torch.ones(len(data), self.model.weight.shape[1])

    def postprocess(self, data):
        return data.sum(dim=1).tolist()
"""
NETWORK = f"""
import torch

class Network(torch.nn.Linear):
    def __init__(self):
        super().__init__({INPUTS}, {OUTPUTS}, bias=False)
"""


def weights_of(pid: int) -> tuple[Path, int]:
    """The file that the process has mapped, and how many bytes of it others have, too."""
    path, shared_bytes = Path(), 0
    is_here = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            is_here = words[-1].endswith("weights.pth")
            path = Path(words[-1]) if is_here else path
        elif is_here and words[0] in ("Shared_Clean:", "Shared_Dirty:"):
            shared_bytes += int(words[1]) * 1024
    return path, shared_bytes


@pytest.mark.slow
def test_two_workers_share_a_models_weights_and_outlive_their_file(server: FerryServer) -> None:
    # Given
    state = io.BytesIO()
    torch.save({"weight": torch.full((OUTPUTS, INPUTS), 0.5)}, state)
    archive = make_archive(
        server.store,
        "sharing",
        {"handler.py": HANDLER, "network.py": NETWORK, "weights.pth": state.getvalue()},
        modelFile="network.py",
        serializedFile="weights.pth",
    )

    # When
    with server.model(archive, "sharing", initial_workers=2):
        found = [weights_of(pid) for pid in server.worker_pids("sharing")]

        # Then
        assert len(found) == 2
        for path, shared_bytes in found:
            assert path.is_file()
            assert shared_bytes >= WEIGHT_BYTES

        # And when the unpacked archive is deleted
        path.unlink()

        # Then
        answers = [server.predict("sharing") for _ in range(4)]
        assert {answer.status_code for answer in answers} == {200}
        assert {float(answer.text) for answer in answers} == {0.5 * INPUTS * OUTPUTS}
