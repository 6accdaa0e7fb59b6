"""Helps to move: compares two servers' answers, and says what must change in a TorchServe."""
