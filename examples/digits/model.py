"""The network. In the archive this file lies beside the handler, which imports it as `model`."""

import torch
from torch import nn


class DigitNet(nn.Module):
    """Two convolutions and two linear layers: float32 [n, 1, 8, 8] in, logits [n, 10] out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns logits, float32 [n, 10]; images are 0 (paper) to 1 (ink)."""
        logits: torch.Tensor = self.layers(images)
        return logits
