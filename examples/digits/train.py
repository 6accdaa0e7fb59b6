"""Trains the network in a few seconds on a CPU, from a fixed seed.

    python -m examples.digits.train --output build/digits

writes `digits.pt` (a state dict) and `held_out/` (360 PNGs named NNN-LABEL.png, to send with curl).
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

from examples.digits.data import held_out, training_set
from examples.digits.model import DigitNet

SEED = 20
EPOCHS = 20
BATCH_SIZE = 64
LEARNING_RATE = 2e-3


def train(epochs: int = EPOCHS) -> DigitNet:
    """Trains a network, without touching the caller's random state."""
    threads = torch.get_num_threads()
    # Images this small are not worth a second thread: on a busy machine, both wait for each other.
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return _fit(DigitNet(), epochs)
    finally:
        torch.set_num_threads(threads)


def save(network: DigitNet, folder: Path) -> Path:
    """Writes `digits.pt` and `held_out/` into the folder; returns the path of the weights."""
    pictures = folder / "held_out"
    pictures.mkdir(parents=True, exist_ok=True)
    for index, (png, label) in enumerate(held_out()):
        pictures.joinpath(f"{index:03d}-{label}.png").write_bytes(png)
    weights = folder / "digits.pt"
    torch.save(network.state_dict(), weights)
    return weights


def _fit(network: DigitNet, epochs: int) -> DigitNet:
    images, labels = (torch.from_numpy(array) for array in training_set())
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(BATCH_SIZE):
            loss = nn.functional.cross_entropy(network(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


def main() -> int:
    """Writes the files; returns the exit code."""
    parser = argparse.ArgumentParser(description="Trains the digit network.")
    parser.add_argument("--output", type=Path, default=Path("build/digits"))
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    folder: Path = options.output
    print(f"{save(train(options.epochs), folder)} and {folder / 'held_out'} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
