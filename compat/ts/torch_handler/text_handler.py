"""Cleans texts up, and makes tokens and their numbers of them, for text handlers."""

import functools
import re
import string
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ts.handler_utils.text_utils import BASIC_ENGLISH, CONTRACTION_MAP, get_tokenizer
from ts.torch_handler.base_handler import BaseHandler, captum_attributions
from ts.utils.util import ENTITY

WORD_MARK = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"
UNKNOWN_TOKEN = "<unk>"  # noqa: S105 - a word of the vocabulary, not a secret
# As in TorchServe, a short contraction is found before a longer one, and inside of words, too.
_CONTRACTIONS = re.compile("|".join(sorted(CONTRACTION_MAP, key=len)), re.IGNORECASE)
_ENTITIES = re.compile(ENTITY)
# A tag; or, without `>` at its end, the rest of a line that has no further tag.
_TAGS = re.compile(rf"<[^>\n]*>?|{ENTITY}")
# Accents that follow each other are sorted by insertion: as one piece, 500 kB took a minute.
_PIECE_CHARACTERS = 256


class TextHandler(BaseHandler):
    """Needs `source_vocab.pt`: a dict of token and number, saved with torch.save."""

    def __init__(self) -> None:
        super().__init__()
        self.source_vocab: Any = None
        self.tokenizer = get_tokenizer(BASIC_ENGLISH)

    def initialize(self, context: Any) -> None:
        """Loads the model and its vocabulary.

        Raises:
            FileNotFoundError: the model's folder has no source_vocab.pt.
            RuntimeError: it is no dict of token and number; it may be a torchtext object.
        """
        super().initialize(context)
        path = self.get_source_vocab_path(context)
        try:
            self.source_vocab = torch.load(path, weights_only=True)
        except FileNotFoundError:
            raise
        except Exception as error:
            why = str(error).partition("\n")[0]
            raise RuntimeError(
                f"{Path(path).name} must hold a dict of token and number. If you have a torchtext "
                f"vocabulary, save `vocab.get_stoi()` with torch.save. ({why})"
            ) from error

    def get_source_vocab_path(self, context: Any) -> str:
        """Returns the path of `sourceVocab` in the manifest, else of source_vocab.pt."""
        name = context.manifest["model"].get("sourceVocab", "source_vocab.pt")
        return str(Path(context.system_properties["model_dir"]) / name)

    def get_token_number(self, token: str) -> int:
        """Returns the token's number; unknown tokens share the number of `<unk>`, 0 without it."""
        unknown = self.source_vocab.get(UNKNOWN_TOKEN, 0)
        return int(self.source_vocab.get(token, unknown))

    @functools.cached_property
    def lig(self) -> Any:
        gradients = captum_attributions().LayerIntegratedGradients
        return gradients(self.model, self.model.embedding)

    def get_word_token(self, input_tokens: Iterable[str]) -> list[str]:
        """Removes the mark that a byte-pair encoding puts where a word begins."""
        return [token.replace(WORD_MARK, "") for token in input_tokens]

    def summarize_attributions(self, attributions: torch.Tensor) -> torch.Tensor:
        """Turns float [n, dimensions] into shares of each row, over the norm of all rows' sums."""
        shares = torch.nn.functional.softmax(attributions, dim=-1)
        return shares / torch.linalg.vector_norm(shares.sum(dim=-1))

    def _remove_html_tags(self, text: str) -> str:
        # Equal to TorchServe's CLEANUP_REGEX, which reads the rest of a line for each `<` that is
        # not closed there: 40 kB of them took 15 s.
        return _TAGS.sub(_without_markup, text)

    def _expand_contractions(self, text: str) -> str:
        text = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
        return _CONTRACTIONS.sub(_expanded, text).replace("'", "")

    def _remove_accented_characters(self, text: str) -> str:
        # In pieces, cut anywhere: characters that would be sorted across a cut are no ASCII, and
        # are dropped.
        pieces = (
            unicodedata.normalize("NFKD", text[start : start + _PIECE_CHARACTERS])
            for start in range(0, len(text), _PIECE_CHARACTERS)
        )
        return "".join(pieces).encode("ascii", "ignore").decode("ascii")

    def _remove_punctuation(self, text: str) -> str:
        return text.translate(str.maketrans("", "", string.punctuation))

    _remove_puncutation = _remove_punctuation  # TorchServe's first handlers spell it so

    def _tokenize(self, text: str) -> list[str]:
        return self.tokenizer(text)


def _without_markup(match: re.Match[str]) -> str:
    is_whole = match[0].startswith("&") or match[0].endswith(">")
    return "" if is_whole else _ENTITIES.sub("", match[0])


def _expanded(match: re.Match[str]) -> str:
    # The first letter stays, whatever its case: a model may have learned "as not" for "ain't".
    short = match[0]
    return short[0] + CONTRACTION_MAP[short.lower()][1:]
