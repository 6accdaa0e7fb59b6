"""English contractions in lower case, and what they stand for."""

_PRONOUNS = ("i", "you", "he", "she", "it", "we", "they", "that", "there", "who", "what")
_AUXILIARIES = ("could", "did", "does", "do", "had", "has", "have", "is", "are", "was", "were")
_MODALS = ("might", "must", "need", "should", "would", "ought")

CONTRACTIONS = (
    {f"{word}n't": f"{word} not" for word in _AUXILIARIES + _MODALS}
    | {
        f"{word}'ve": f"{word} have"
        for word in (*_PRONOUNS, "could", "might", "must", "should", "would")
    }
    | {f"{word}'ll": f"{word} will" for word in _PRONOUNS}
    | {f"{word}'d": f"{word} would" for word in _PRONOUNS}
    | {f"{word}'s": f"{word} is" for word in (*_PRONOUNS[2:5], *_PRONOUNS[7:], "how", "where")}
    | {f"{word}'re": f"{word} are" for word in ("you", "we", "they")}
    | {
        "i'm": "i am",
        "can't": "cannot",
        "won't": "will not",
        "shan't": "shall not",
        "ain't": "is not",
        "let's": "let us",
        "y'all": "you all",
        "o'clock": "of the clock",
    }
)
