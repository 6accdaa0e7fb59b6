"""Names the classes that a model reads in a text."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from ts.handler_utils.text_utils import Words, ngrams_iterator
from ts.torch_handler.text_handler import TextHandler
from ts.utils.util import PredictionException, map_class_to_label


class TextClassifier(TextHandler):
    """Turns texts into {label: probability}.

    The model takes (tokens int64 [all tokens of the batch], offsets int64 [n]), as
    torch.nn.EmbeddingBag does. TorchServe looks at the first row of a batch only.
    """

    ngrams = 2

    def preprocess(self, data: Any) -> Any:
        """Returns the token numbers of all rows, int64 [all tokens], and their words."""
        rows = [self._words(row.get("data") or row.get("body")) for row in data]
        numbers = [self._token_numbers(words) for words in rows]
        words = Words(itertools.chain.from_iterable(rows))
        words.starts = [sum(map(len, numbers[:index])) for index in range(len(rows))]
        tokens = list(itertools.chain.from_iterable(numbers))
        return torch.as_tensor(tokens, dtype=torch.int64, device=self.device), words

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns float [n, classes]; tokens without our `Words` beside them count as one row."""
        tokens, words = data
        starts = words.starts if isinstance(words, Words) else Words.starts
        offsets = torch.as_tensor(starts, dtype=torch.int64, device=self.device)
        return super().inference(tokens, offsets, *args, **kwargs)

    def postprocess(self, data: Any) -> list[Any]:
        return map_class_to_label(torch.nn.functional.softmax(data, dim=1).tolist(), self.mapping)

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> list[Any]:
        """Attributes one class to the model's layer `embedding`, word by word."""
        tokens, words = tensor_data
        attributions = self.lig.attribute(
            tokens,
            torch.zeros_like(tokens),
            additional_forward_args=torch.zeros(1, dtype=torch.int64, device=self.device),
            return_convergence_delta=False,
            target=target,
        )
        importances = self.summarize_attributions(attributions).tolist()
        return [{"importances": importances, "words": self.get_word_token(words)}]

    def _words(self, text: Any) -> list[str]:
        if isinstance(text, bytes | bytearray):
            text = text.decode("utf-8", errors="replace")
        if not isinstance(text, str):
            raise PredictionException("Input is not text.", 400)
        text = self._expand_contractions(self._remove_html_tags(text).lower())
        text = self._remove_punctuation(self._remove_accented_characters(text))
        return self._tokenize(text)

    def _token_numbers(self, words: Sequence[str]) -> list[int]:
        return [self.get_token_number(gram) for gram in ngrams_iterator(words, self.ngrams)]
