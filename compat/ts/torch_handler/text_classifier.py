"""Which of its classes a model reads in a text."""

from typing import Any

import torch
from ts.handler_utils.text_utils import ngrams_iterator
from ts.torch_handler.text_handler import TextHandler
from ts.utils.util import PredictionException, map_class_to_label


class TextClassifier(TextHandler):
    """Text in, {label: probability} out.

    The model takes (tokens int64 [all tokens of the batch], offsets int64 [n]), which is what
    torch.nn.EmbeddingBag takes. TorchServe looks at the first row of a batch only.
    """

    ngrams = 2

    def preprocess(self, data: Any) -> Any:
        """The token numbers of all rows in a line, and where each row begins.

        Raises:
            PredictionException: status 400, a row without text.
        """
        rows = [self._token_numbers(row.get("data") or row.get("body")) for row in data]
        starts = [sum(map(len, rows[:index])) for index in range(len(rows))]
        numbers = [number for row in rows for number in row]
        return (
            torch.as_tensor(numbers, dtype=torch.int64, device=self.device),
            torch.as_tensor(starts, dtype=torch.int64, device=self.device),
        )

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Float [n, classes]."""
        tokens, offsets = data
        return super().inference(tokens, offsets, *args, **kwargs)

    def postprocess(self, data: Any) -> list[Any]:
        """N times {label: probability}."""
        return map_class_to_label(torch.nn.functional.softmax(data, dim=1).tolist(), self.mapping)

    def _token_numbers(self, text: Any) -> list[int]:
        if isinstance(text, bytes | bytearray):
            text = text.decode("utf-8", errors="replace")
        if not isinstance(text, str):
            raise PredictionException("Input is not text.", 400)
        text = self._expand_contractions(self._remove_html_tags(text).lower())
        text = self._remove_punctuation(self._remove_accented_characters(text))
        words = self._tokenize(text)
        return [self.get_token_number(gram) for gram in ngrams_iterator(words, self.ngrams)]
