"""Loading weights, explaining, and the built-in handler for text."""

import sys
import types

import pytest
import torch
from ts.context import RequestProcessor
from ts.service import PredictionException
from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.text_classifier import TextClassifier

from tests.unit.models import MODEL_SOURCE, Pooled, Touch, manifest, saved, scripted
from workers.machine import Device


def test_log_says_what_to_do_when_torch_does_not_see_the_gpu(load_handler, monkeypatch, caplog):
    # Given
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    files, section = {"w.pt": scripted(Pooled(2).eval())}, manifest(serializedFile="w.pt")

    # When
    load_handler(files, handler="base_handler", manifest=section, device=Device("cuda", 1))

    # Then
    assert "GPU 1 is there, but torch" in caplog.text
    assert "number_of_gpu=0" in caplog.text


@pytest.mark.parametrize(
    ("section", "kind", "text"),
    [
        ({"modelFile": "gone.py", "serializedFile": "x"}, RuntimeError, r"Missing the model\.py"),
        ({"serializedFile": "gone.pt"}, RuntimeError, "Missing the model weights file"),
        ({"serializedFile": "x"}, RuntimeError, "No model weights could be loaded"),
        (
            {"modelFile": "two_nets.py", "serializedFile": "x"},
            ValueError,
            "Expected only one class",
        ),
    ],
)
def test_missing_part_of_a_model_is_a_load_error(section, kind, text, load_handler):
    # Given
    files = {"x": "", "two_nets.py": "class A: pass\nclass B: pass"}
    # When / Then
    with pytest.raises(kind, match=text):
        load_handler(files, handler="base_handler", manifest=manifest(**section))


def test_handler_whose_own_init_calls_no_other_loads_a_model_without_weights(load_handler):
    # Given
    source = """
from ts.torch_handler.base_handler import BaseHandler
class Own(BaseHandler):
    def __init__(self): self.classes = 2
"""
    files = {"own.py": source, "unweighted_net.py": MODEL_SOURCE.format(classes=2)}
    # When
    section = manifest(modelFile="unweighted_net.py")
    loaded = load_handler(files, handler="own.py", manifest=section)
    # Then
    assert loaded.entry.__name__


@pytest.mark.parametrize("is_eager", [True, False])
def test_b13_checkpoint_that_runs_code_is_refused(is_eager, load_handler, tmp_path):
    # Given
    section = manifest(serializedFile="w.pt", **({"modelFile": "evil_net.py"} if is_eager else {}))
    evil = tmp_path / "evil"
    files = {"evil_net.py": MODEL_SOURCE.format(classes=2), "w.pt": saved(Touch(evil))}

    # When / Then
    with pytest.raises(Exception, match=r"Weights only load failed|constants"):
        load_handler(files, handler="base_handler", manifest=section)
    assert not evil.exists()


def test_client_is_told_that_explanations_need_captum(monkeypatch):
    # Given
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    handler = ImageClassifier()

    # When / Then
    with pytest.raises(PredictionException, match="captum") as caught:
        handler.get_insights(torch.zeros(1, 3, 2, 2), None)
    assert caught.value.error_code == 501


class BagOfWords(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(5, 2, mode="sum")
        with torch.no_grad():
            self.bag.weight.copy_(torch.tensor([[0, 0], [5, 0], [0, 5], [0, 9], [2, 0]]))

    def forward(self, tokens: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.bag(tokens, offsets)


def test_text_classifier_answers_every_row_of_a_batch(load_handler):
    # Given
    vocabulary = {"<unk>": 0, "good": 1, "bad": 2, "not good": 3, "cafe": 4}
    files = {
        "m.pt": scripted(BagOfWords()),
        "source_vocab.pt": saved(vocabulary),
        "index_to_name.json": '{"0": "up", "1": "down"}',
    }
    loaded = load_handler(
        files, handler="text_classifier", manifest=manifest(serializedFile="m.pt")
    )
    loaded.context.request_processor = [RequestProcessor({})] * 4
    rows = [
        {"data": "<b>GOOD!</b>"},
        {"body": bytearray(b"bad")},
        {"data": "isn't good"},
        {"data": "CAF\N{LATIN CAPITAL LETTER E WITH ACUTE}"},
    ]

    # When
    output = loaded.entry(rows, loaded.context)

    # Then
    assert [max(row, key=row.get) for row in output] == ["up", "down", "down", "up"]
    assert all(sum(row.values()) == pytest.approx(1) for row in output)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fish &amp; chips &#38; &#x26;", "fish  chips  "),
        ("&AMP; &; &#1234567; a&b", "amp  1234567 ab"),
        ("how'd why's what're where've", "how did why is what are where have"),
        ("sha'n't mayn't ma'am so's", "shall not may not madam so as"),
        ("can't've 'cause ain't", "cannotve ecause as not"),
        ("Y'ALL're i'd've he've", "you allre i wouldve heve"),
        ("the dog's it's", "the dogs it is"),
    ],
)
def test_text_is_cleaned_as_in_torchserve(text, words):
    # Given
    handler = TextClassifier()

    # When
    plain = handler._expand_contractions(handler._remove_html_tags(text).lower())

    # Then
    assert handler._remove_punctuation(plain) == words


class Gradients:
    """The part of captum's attributions that the handlers call."""

    def __init__(self, model, layer=None):
        self.model, self.layer = model, layer

    def attribute(self, inputs, baseline=None, **options):
        self.asked = (inputs, baseline, options)
        return torch.zeros(1, 4)


@pytest.fixture
def captum(monkeypatch):
    module = types.SimpleNamespace(
        IntegratedGradients=Gradients, LayerIntegratedGradients=Gradients
    )
    monkeypatch.setitem(sys.modules, "captum.attr", module)


@pytest.mark.usefixtures("captum")
def test_text_classifier_explains_by_its_embedding():
    # Given
    handler = TextClassifier()
    handler.device, handler.source_vocab = torch.device("cpu"), {"a": 3, "film": 4, "a film": 5}
    handler.model = torch.nn.ModuleDict({"embedding": torch.nn.EmbeddingBag(6, 4)})
    handler.model.embedding = handler.model["embedding"]

    # When
    output = handler.get_insights(handler.preprocess([{"data": "A film"}]), None, target=1)

    # Then
    assert output == [{"importances": [[0.25] * 4], "words": ["a", "film"]}]
    tokens, baseline, options = handler.lig.asked
    assert handler.lig.layer is handler.model.embedding
    assert (tokens.tolist(), baseline.tolist()) == ([3, 4, 5], [0, 0, 0])
    assert options["additional_forward_args"].tolist() == [0]
    assert (options["target"], options["return_convergence_delta"]) == (1, False)
    assert handler.get_word_token(["\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}film"]) == ["film"]


@pytest.mark.usefixtures("captum")
def test_image_handler_has_integrated_gradients_of_its_model():
    # Given
    handler = ImageClassifier()
    handler.model = torch.nn.Identity()

    # When
    output = handler.get_insights(torch.zeros(1, 4), None, 2)

    # Then
    assert handler.ig.model is handler.model
    assert handler.ig.asked[2] == {"target": 2, "n_steps": 15}
    assert output == [[0] * 4]


def test_words_that_a_handler_puts_beside_the_tokens_are_those_of_one_row():
    # Given
    handler = TextClassifier()
    handler.device, handler.source_vocab = torch.device("cpu"), {"good": 1}
    handler.model = BagOfWords()

    # When
    tokens, words = handler.preprocess([{"data": "good good"}])

    # Then
    assert words == ["good", "good"]
    assert handler.inference((tokens, list(words))).tolist() == [[10, 0]]


def test_text_classifier_refuses_a_body_that_is_not_text():
    # When / Then
    with pytest.raises(PredictionException, match="not text") as caught:
        TextClassifier().preprocess([{"data": {"a": 1}}])
    assert caught.value.error_code == 400


def test_text_classifier_says_how_its_vocabulary_must_be(load_handler, tmp_path):
    # Given
    evil, section = tmp_path / "evil", manifest(serializedFile="m.pt")
    files = {"m.pt": scripted(BagOfWords())}

    # When / Then
    with pytest.raises(FileNotFoundError, match="source_vocab"):
        load_handler(files, handler="text_classifier", manifest=section)
    files["source_vocab.pt"] = saved(Touch(evil))
    with pytest.raises(RuntimeError, match=r"source_vocab.*Weights only load failed"):
        load_handler(files, handler="text_classifier", manifest=section)
    assert not evil.exists()
