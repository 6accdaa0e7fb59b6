"""Streams the text that a transformers model generates, for all rows of a batch."""

import importlib
from typing import Any


class TextIteratorStreamerBatch:
    """Iterates over steps; each is a list with {"text": new text} for every row.

    Pass it to `model.generate(streamer=…)` in one thread and iterate over it in another. Once it
    has ended, the next call of `generate` with as many rows may use it again.
    """

    def __init__(
        self,
        tokenizer: Any,
        batch_size: int,
        skip_prompt: bool = False,
        timeout: float | None = None,
        **decode_kwargs: Any,
    ) -> None:
        transformers = importlib.import_module("transformers")
        self.batch_size = batch_size
        self._rows = [
            transformers.TextIteratorStreamer(tokenizer, skip_prompt, timeout, **decode_kwargs)
            for _ in range(batch_size)
        ]

    def put(self, value: Any) -> None:
        """Takes tokens of the prompt, int [batch_size, n], or of one step, int [batch_size]."""
        for row, tokens in zip(self._rows, value, strict=True):
            row.put(tokens.reshape(-1))

    def end(self) -> None:
        for row in self._rows:
            row.end()

    def __iter__(self) -> "TextIteratorStreamerBatch":
        return self

    def __next__(self) -> list[dict[str, str]]:
        # Asks every row: a row left out would begin the next answer with the end of this one.
        texts = [next(row, None) for row in self._rows]
        if None in texts:
            raise StopIteration
        return [{"text": text} for text in texts]
