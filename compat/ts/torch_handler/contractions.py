"""Lists English contractions and their full forms. Source: TorchServe 0.12 CONTRACTION_MAP.

Contractions that TorchServe does not know ("he've") are left out, so that scores are the same.
"""

_ASKING = ["what", "when", "where", "who", "why"]
_ARE = ["they", "we", "what", "you", "y'all"]
_NOT_HAVE = ["could", "had", "might", "must", "need", "ought", "should", "would"]
_NOT = [*_NOT_HAVE, "are", "did", "does", "do", "has", "have", "is", "may", "was", "were"]
_HAVE = [*_ASKING, *_ARE, "could", "i", "might", "must", "should", "so", "to", "will", "would"]
_WOULD = ["he", "i", "it", "she", "that", "there", "they", "we", "you", "y'all"]
_WILL = ["he", "i", "it", "she", "they", "we", "what", "who", "you"]
_IS = [*_ASKING, "he", "how", "it", "she", "that", "there"]
_IRREGULAR = {
    "ain't": "is not",
    "can't": "cannot",
    "can't've": "cannot have",
    "'cause": "because",
    "how'd": "how did",
    "how'd'y": "how do you",
    "how'll": "how will",
    "i'm": "i am",
    "let's": "let us",
    "ma'am": "madam",
    "o'clock": "of the clock",
    "shan't": "shall not",
    "sha'n't": "shall not",
    "shan't've": "shall not have",
    "so's": "so as",
    "where'd": "where did",
    "won't": "will not",
    "won't've": "will not have",
    "y'all": "you all",
}


def _contractions() -> dict[str, str]:
    short = (
        {f"{word}n't": f"{word} not" for word in _NOT}
        | {f"{word}n't've": f"{word} not have" for word in _NOT_HAVE}
        | {f"{word}'d": f"{word} would" for word in _WOULD}
        | {f"{word}'d've": f"{word} would have" for word in _WOULD}
        | {f"{word}'ll": f"{word} will" for word in _WILL}
        | {f"{word}'ll've": f"{word} will have" for word in _WILL}
        | {f"{word}'s": f"{word} is" for word in _IS}
        | {f"{word}'ve": f"{word} have" for word in _HAVE}
        | {f"{word}'re": f"{word} are" for word in _ARE}
    )
    whole = {word: text.replace("y'all", "you all") for word, text in short.items()} | _IRREGULAR
    of_i = {f"I{word[1:]}": f"I{whole[word][1:]}" for word in whole if word.startswith("i'")}
    return whole | of_i


CONTRACTION_MAP = _contractions()
