"""Tiny models in the places of those that the documents' examples download."""

import subprocess
import sys
from pathlib import Path

import torch
from torchvision.models import ResNet18_Weights, resnet18

# In a process of its own: these libraries take a gigabyte, and threads.
_PROGRAM = """
import json
import sys
from pathlib import Path
import transformers as t
from transformers.pipelines import SUPPORTED_TASKS

SENTIMENT, REVISION = SUPPORTED_TASKS["text-classification"]["default"]["model"]

def place(name):
    repository = Path(sys.argv[1], "hub", "models--" + name.replace("/", "--"))
    commit = "0" * 40
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    for revision in ("main", REVISION):
        (repository / "refs" / revision).write_text(commit)
    return snapshot

def sentiment():
    # To which every text is positive.
    folder = place(SENTIMENT)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "a", "lovely", "day"]
    (folder / "vocab.txt").write_text("\\n".join(words))
    t.DistilBertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    labels = {0: "NEGATIVE", 1: "POSITIVE"}
    config = t.DistilBertConfig(
        vocab_size=len(words), dim=8, hidden_dim=8, n_layers=1, n_heads=1, id2label=labels,
        label2id={label: number for number, label in labels.items()},
    )
    model = t.DistilBertForSequenceClassification(config)
    model.classifier.weight.data.zero_()
    model.classifier.bias.data[1] = 5
    model.save_pretrained(folder)

def letters(folder, end, *others):
    # A tokenizer that knows each byte, and these words.
    from tokenizers.pre_tokenizers import ByteLevel
    known = sorted(ByteLevel.alphabet()) + [*others, end]
    vocabulary = {word: number for number, word in enumerate(known)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\\n")
    return vocabulary

def story():
    # That goes on with one word, again and again.
    folder = place("openai-community/gpt2")
    vocabulary = letters(folder, "<|endoftext|>", "Ġferry")
    files = [str(folder / name) for name in ("vocab.json", "merges.txt")]
    t.GPT2TokenizerFast(*files).save_pretrained(folder)
    end = vocabulary["<|endoftext|>"]
    sizes = {"vocab_size": len(vocabulary), "n_embd": 8, "n_layer": 1, "n_head": 1}
    config = t.GPT2Config(**sizes, n_positions=128, bos_token_id=end, eos_token_id=end)
    model = t.GPT2LMHeadModel(config)
    last = model.transformer.ln_f
    last.weight.data.zero_()
    last.bias.data.fill_(1)
    model.lm_head.weight.data[vocabulary["Ġferry"]] = 1
    model.save_pretrained(folder)

def clip():
    folder = place("openai/clip-vit-base-patch32")
    vocabulary = letters(folder, "<|endoftext|>", "<|startoftext|>")
    files = [str(folder / name) for name in ("vocab.json", "merges.txt")]
    tokenizer = t.CLIPTokenizerFast(*files)
    size = {"shortest_edge": 32}
    images = t.CLIPImageProcessor(size=size, crop_size={"height": 32, "width": 32})
    t.CLIPProcessor(images, tokenizer).save_pretrained(folder)
    layers = {
        "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1
    }
    end = vocabulary["<|endoftext|>"]
    text = {**layers, "vocab_size": len(vocabulary), "eos_token_id": end, "bos_token_id": end - 1}
    vision = {**layers, "image_size": 32, "patch_size": 16}
    config = t.CLIPConfig(text_config=text, vision_config=vision, projection_dim=512)
    t.CLIPModel(config).save_pretrained(folder)

for name in sys.argv[2:]:
    globals()[name]()
"""


def put_in_cache(folder: Path, *names: str) -> None:
    """Writes these models into a new cache, to which HF_HOME leads: sentiment, story, clip."""
    words = [sys.executable, "-c", _PROGRAM, str(folder), *names]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def put_resnet(folder: Path) -> None:
    """Writes a ResNet-18 that sees a tabby in every picture, to where TORCH_HOME is this folder."""
    weights = ResNet18_Weights.DEFAULT
    model = resnet18(weights=None)
    model.fc.bias.data[weights.meta["categories"].index("tabby")] = 1000
    checkpoints = folder / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    torch.save(model.state_dict(), checkpoints / Path(weights.url).name)
