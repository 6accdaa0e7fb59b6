"""The archives around the handlers of the corpus, and the questions for each."""

import base64
import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tests.handlers.models import (
    DETECTOR_SOURCE,
    FEATURES_SOURCE,
    Coloured,
    detector_state,
    linear_state,
    spread,
)
from tests.unit import models
from tests.unit.compat.onnx_bytes import doubling_model
from tests.unit.workers.archives.wheels import PACKAGE

CORPUS = Path(__file__).with_name("corpus")
KITTEN = Path(__file__).parents[2] / "examples" / "kitten.jpg"
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request; with several bodies, that many requests at the same time."""

    name: str
    bodies: tuple[bytes, ...] = (b"",)
    headers: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, tuple[str, bytes, str]] | None = None
    route: str = "predictions/{}"
    method: str = "POST"
    is_management: bool = False


@dataclass(frozen=True, slots=True)
class Archive:
    """A handler, its archived files, how it is registered, and the questions for it."""

    name: str
    asks: tuple[Ask, ...]
    handler: str = ""
    files: Mapping[str, bytes | str] = field(default_factory=dict)
    model: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    query: Mapping[str, int] = field(default_factory=dict)

    def write(self, store: Path) -> str:
        """Writes `NAME.mar` into the store; returns its name."""
        handler = self.handler or f"{self.name}.py"
        model = {"modelName": self.name, "modelVersion": "1.0", "handler": handler, **self.model}
        files = dict(self.files)
        source = CORPUS / handler.partition(":")[0]
        if source.is_file():
            files[source.name] = source.read_bytes()
        if self.config is not None:
            model["configFile"] = "model-config.yaml"
            files["model-config.yaml"] = json.dumps(self.config)  # JSON is YAML
        manifest = {"runtime": "python", "model": model, "archiverVersion": "0.12.0"}
        with zipfile.ZipFile(store / f"{self.name}.mar", "w") as bundle:
            bundle.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
            for name, content in files.items():
                bundle.writestr(name, content)
        return f"{self.name}.mar"


def one(name: str, body: bytes | str | Any, headers: Mapping[str, str] | None = None) -> Ask:
    """Makes a POST of bytes, of text as bytes, or of anything else as JSON."""
    if isinstance(body, bytes | str):
        content = body.encode() if isinstance(body, str) else body
        return Ask(name, (content,), headers or {})
    return Ask(name, (json.dumps(body).encode(),), {**JSON, **(headers or {})})


def picture(size: tuple[int, int] = (24, 16)) -> bytes:
    gradient = Image.linear_gradient("L").resize(size)
    image = Image.merge("RGB", [gradient, gradient.rotate(180), gradient])
    image.save(buffer := io.BytesIO(), "PNG")
    return buffer.getvalue()


def labels(count: int) -> str:
    return json.dumps({str(number): f"label {number}" for number in range(count)})


def scripted(module: torch.nn.Module) -> dict[str, Any]:
    weights = models.scripted(spread(module))
    return {"files": {"w.pt": weights}, "model": {"serializedFile": "w.pt"}}


def eager(source: str, state: bytes) -> dict[str, Any]:
    files = {"net.py": source, "w.pt": state}
    return {"files": files, "model": {"modelFile": "net.py", "serializedFile": "w.pt"}}


def with_files(parts: dict[str, Any], **files: bytes | str) -> dict[str, Any]:
    named = {name.replace("__", "."): content for name, content in files.items()}
    return {**parts, "files": {**parts["files"], **named}}


def each_of(wishes: Iterable[str]) -> tuple[Ask, ...]:
    return tuple(one(wish, wish) for wish in wishes)


def names_in(handler: str, pattern: str) -> list[str]:
    """Returns what the pattern finds in a handler of the corpus."""
    return re.findall(pattern, (CORPUS / handler).read_text(encoding="utf-8"))


def all_archives() -> list[Archive]:
    return [*_plain(), *_enveloped(), *_torch(), *_pictures(), *_settings()]


def _plain() -> list[Archive]:
    requirement = {
        "files": {"requirements.txt": f"{PACKAGE}==1.0\n"},
        "model": {"requirementsFile": "requirements.txt"},
    }
    helper = {
        "corpus_helper.py": "def shout(name):\n    return name.upper() + '!'\n",
        "greeting.txt": "hello\n",
    }
    table = {"numbers": [3, 1, 2]}
    return [
        Archive(
            "echo_function",
            (
                one("bytes", b"\x00\xff raw"),
                one("text", "grüße", {"content-type": "text/plain"}),
                one("json", {"a": [1, None]}),
                Ask("form", form={"data": ("", b"from a form", "")}),
                Ask("get", method="GET"),
            ),
        ),
        Archive(
            "named_entry",
            (one("bytes", b"12345"), one("json", [1, 2])),
            handler="named_entry.py:predict",
        ),
        Archive("plain_class", (one("number", "21"), one("json", 1.5), one("no number", "x"))),
        Archive("module_service", (one("text", "palindrome"),)),
        Archive(
            "two_inputs",
            (
                Ask(
                    "both",
                    form={
                        "image": ("a.png", picture(), "image/png"),
                        "caption": ("", b"a cat", ""),
                    },
                ),
                Ask("no caption", form={"image": ("a.png", picture(), "image/png")}),
            ),
        ),
        Archive(
            "json_table",
            (
                *(
                    one(kind, {**table, "answer": kind})
                    for kind in ("dict", "list", "number", "text", "null", "bytes")
                ),
                one("unmarked", json.dumps(table)),
                one("broken", "{", JSON),
                one("empty", {"numbers": []}),
            ),
        ),
        Archive("word_stream", (one("words", "one two three"), one("single", "alone"))),
        Archive(
            "measured",
            (one("first", "abc"), one("second", "")),
        ),
        Archive("metric_uses", each_of(names_in("metric_uses.py", r"def (\w+)\(self, metrics"))),
        Archive(
            "refusing",
            each_of(
                [
                    "400",
                    "404",
                    "599",
                    "refuse",
                    "fail",
                    "memory",
                    "cuda",
                    "none",
                    "text",
                    "short",
                    "object",
                    "fine",
                ]
            ),
        ),
        Archive(
            "status_and_headers",
            (
                one("created", "201"),
                one("no room", "507"),
                one("html", "text/html"),
            ),
        ),
        Archive(
            "request_headers",
            (
                one("own header", "x", {"X-Corpus": "value"}),
                Ask("tail", route="predictions/{}/1.0/a/b"),
                one("sequence", "x", {"ts_request_sequence_id": "7"}),
            ),
        ),
        Archive("extra_files", (one("name", "ann"),), files=helper),
        Archive("own_requirement", (one("any", "x"),), **requirement),
        Archive(
            "yaml_config",
            (one("any", "x"),),
            config={
                "handler": {"top_k": 3, "names": ["a", "b"], "nested": {"deep": True}},
                "maxBatchDelay": 7,
                "batchSize": 2,
                "of my own": 1.5,
            },
        ),
        Archive("timed_steps", (one("letter", "a"),), config={"handler": {"profile": True}}),
        Archive(
            "batch_size",
            (
                Ask("two at once", (b"first", b"second")),
                one("alone", "third"),
            ),
            query={"batch_size": 2, "max_batch_delay": 2000},
        ),
        Archive("picture_answer", (one("mirror", picture((4, 3))), one("no picture", "x"))),
        Archive("pools", each_of(["kept_pool", "new_pool", "executor", "threads", "process"])),
    ]


def _enveloped() -> list[Archive]:
    shapes = {"name": "a", "shape": [2, 2], "datatype": "INT32", "data": [1, 2, 3, 4]}
    marked = """\
import json

from ts.torch_handler.request_envelope.json import JSONEnvelope


class MarkedEnvelope(JSONEnvelope):
    def _to_json(self, output):
        return json.dumps({**json.loads(super()._to_json(output)), "by": self.context.model_name})
"""
    return [
        Archive("text_bodies", (one("body", "quiet"), one("no text", b"\xff"))),
        Archive(
            "marked_predictions",
            (
                Ask("two at once", (b'{"instances": ["a", "bb"]}', b'{"instances": [[]]}'), JSON),
                one("base64", {"instances": [{"b64": "aGVsbG8="}]}),
                one("no instances", {"inputs": []}),
            ),
            files={"corpus_envelopes.py": marked},
            query={"batch_size": 2, "max_batch_delay": 2000},
        ),
        Archive(
            "kserve_lengths",
            (
                one("prediction", {"instances": ["a", "bb"]}),
                Ask("explanation", (b'{"instances": [[1, 2]]}',), JSON, route="explanations/{}"),
                Ask("v1", (b'{"instances": ["abc"]}',), JSON, route="v1/models/{}:predict"),
            ),
        ),
        Archive(
            "kserve_tensors",
            (
                one("tensors", {"id": "mine", "inputs": [shapes]}),
                one("no inputs", {"id": "mine"}),
            ),
        ),
        Archive("semicolons", (one("numbers", "1;2.5"), one("no numbers", "one"))),
    ]


def _torch() -> list[Archive]:
    features = scripted(torch.nn.Linear(3, 4))
    vocabulary = json.dumps({"good": 0, "bad": 1, "film": 2})
    words = eager(FEATURES_SOURCE.format(inputs=3, outputs=2), linear_state(3, 2))
    onnx = {"files": {"w.onnx": doubling_model()}, "model": {"serializedFile": "w.onnx"}}
    parallel = {"preprocess": 1, "inference": 2, "postprocess": 1}
    return [
        Archive(
            "json_features",
            (
                one("json", {"features": [1, 2, 3]}),
                one("unmarked", json.dumps({"features": [0.5, 0, -1]})),
                Ask("form", form={"data": ("", json.dumps({"features": [1, 1, 1]}).encode(), "")}),
                one("too few", {"features": [1]}),
                one("none", {}),
            ),
            **features,
        ),
        Archive(
            "labelled_features",
            (one("row", [1.0, -2.0, 0.5]),),
            **with_files(features, index_to_name__json=labels(4)),
        ),
        Archive(
            "word_counts",
            (
                one("bytes", "A <b>good</b> good film"),
                one("text", "A bad film, a bad one", {"content-type": "text/plain"}),
            ),
            **with_files(
                words,
                vocabulary__json=vocabulary,
                index_to_name__json='{"0": "up", "1": ["n1", "down"]}',
            ),
        ),
        Archive("own_initialize", (one("row", [1.0, -2.0, 0.5]),), **features),
        Archive("data_loader", (one("rows", b"\x01\x02"), one("again", b"\x03"))),
        Archive("onnx_session", (one("json", [1, 2, 3]), one("bytes", "[0.5, -1, 4]")), **onnx),
        Archive(
            "micro_batches",
            (Ask("four at once", tuple(json.dumps([n, n, n]).encode() for n in range(4)), JSON),),
            query={"batch_size": 4, "max_batch_delay": 2000},
            config={"micro_batching": {"micro_batch_size": 2, "parallelism": parallel}},
            **features,
        ),
        Archive(
            "explaining",
            (
                one("prediction", b"\x01\x02\x03"),
                Ask("explanation", (b"\x01\x02\x03",), route="explanations/{}"),
                Ask(
                    "target",
                    route="explanations/{}",
                    form={"data": ("", b"abc", ""), "target": ("", b"2", "")},
                ),
            ),
            **features,
        ),
        Archive(
            "described",
            (
                one("prediction", "abc"),
                Ask(
                    "description",
                    method="GET",
                    route="models/{}?customized=true",
                    is_management=True,
                ),
            ),
            **features,
        ),
    ]


def _pictures() -> list[Archive]:
    kitten = KITTEN.read_bytes()
    classes = with_files(scripted(models.Pooled(8)), index_to_name__json=labels(8))
    detector = with_files(
        eager(DETECTOR_SOURCE, detector_state()),
        index_to_name__json='{"1": "cat", "2": "dog"}',
    )
    return [
        Archive(
            "image_classifier",
            (
                one("body", kitten),
                Ask("form", form={"data": ("kitten.jpg", kitten, "image/jpeg")}),
                one("base64", base64.b64encode(kitten), {"content-type": "text/plain"}),
                one("numbers", [[[0.5, -1.0], [2.0, 0.25]]] * 3),
                one("no picture", "hello"),
            ),
            handler="image_classifier",
            **classes,
        ),
        Archive("own_vision", (one("body", kitten),), **classes),
        Archive("top_three", (one("body", kitten),), config={"handler": {"top_k": 3}}, **classes),
        Archive(
            "digit_classifier",
            (one("grey", picture()), one("kitten", kitten)),
            **scripted(models.Pooled(10)),
        ),
        Archive("small_segmenter", (one("picture", picture()),), **scripted(Coloured())),
        Archive(
            "object_detector", (one("picture", picture()),), handler="object_detector", **detector
        ),
        Archive("careful_detector", (one("picture", picture()),), **detector),
    ]


def _settings() -> list[Archive]:
    """Makes an archive for each change to what a process shares."""
    return [
        Archive(
            f"process_settings_{setting}".rstrip("_"),
            (one("first", "abc"), one("failure", "fail"), one("second", "def")),
            handler="process_settings.py",
            files={"setting": setting},
        )
        for setting in names_in("process_settings.py", r'(?m)^    "(\w*)": ')
    ]
