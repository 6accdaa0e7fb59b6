"""A tiny model in the place of the one that `pipeline("sentiment-analysis")` downloads."""

import subprocess
import sys
from pathlib import Path

# In a process of its own: these libraries take a gigabyte, and threads.
_PROGRAM = """
import sys
from pathlib import Path
from transformers import (
    DistilBertConfig, DistilBertForSequenceClassification, DistilBertTokenizerFast
)
from transformers.pipelines import SUPPORTED_TASKS

name, revision = SUPPORTED_TASKS["text-classification"]["default"]["model"]
repository = Path(sys.argv[1], "hub", "models--" + name.replace("/", "--"))
commit = "0" * 40
snapshot = repository / "snapshots" / commit
snapshot.mkdir(parents=True)
(repository / "refs").mkdir()
(repository / "refs" / revision).write_text(commit)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "a", "lovely", "day"]
(snapshot / "vocab.txt").write_text("\\n".join(words))
DistilBertTokenizerFast(str(snapshot / "vocab.txt")).save_pretrained(snapshot)
labels = {0: "NEGATIVE", 1: "POSITIVE"}
config = DistilBertConfig(
    vocab_size=len(words), dim=8, hidden_dim=8, n_layers=1, n_heads=1, id2label=labels,
    label2id={label: number for number, label in labels.items()},
)
DistilBertForSequenceClassification(config).save_pretrained(snapshot)
"""


def put_in_cache(folder: Path) -> None:
    """Writes the model into a new cache, to which HF_HOME leads."""
    subprocess.run([sys.executable, "-c", _PROGRAM, str(folder)], check=True, capture_output=True)
