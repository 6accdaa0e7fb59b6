"""Helps to move: compares two servers' answers, and says what a TorchServe becomes here."""
