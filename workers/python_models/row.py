"""A request as a Python model's decoder sees it: parts with types, or tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import parse_qsl

from batching.errors import BadRequest
from batching.protocol import OPEN_INFERENCE_TYPE, Part
from workers.python_models.open_inference import Inference

_URLENCODED = "application/x-www-form-urlencoded"
_INFERENCE = f"{OPEN_INFERENCE_TYPE};json="


@dataclass
class Row:
    """One request: its parts by name, undecoded."""

    parts: Mapping[str, Part]

    @cached_property
    def inference(self) -> Inference | None:
        """Returns the request if it is one of the Open Inference Protocol.

        Raises:
            BadRequest, BadTensor: it is none, though its type says so.
        """
        body = self.parts.get("body")
        if body is None or not body.content_type.startswith(_INFERENCE):
            return None
        return Inference.read(body.content, int(body.content_type.rpartition("=")[2]))

    @property
    def body(self) -> Part:
        """Returns the part that is meant where a model takes one value.

        Raises:
            BadRequest: there are several, and none is called `body` or `data`.
        """
        part = self.whole
        if part is None and len(self.parts) == 1:
            (part,) = self.parts.values()
        if part is None:
            names = ", ".join(sorted(self.parts)) or "none"
            raise BadRequest(
                f"One value is wanted, as the body or as a field `data`; fields: {names}."
            )
        # `curl -d` says that any body is a form; `data=…` is one, as TorchServe's clients send it.
        if part.content_type != _URLENCODED or not part.content.startswith((b"data=", b"body=")):
            return part
        return next(iter(self.fields.values())) if len(self.fields) == 1 else part

    @property
    def whole(self) -> Part | None:
        """Returns the body, or the field that TorchServe's clients send in its place."""
        parts = self.parts
        return parts["body"] if "body" in parts else parts.get("data")

    @cached_property
    def fields(self) -> Mapping[str, Part]:
        """Returns the parts of a form, those of an urlencoded body among them."""
        body = self.parts.get("body")
        if len(self.parts) != 1 or body is None or body.content_type != _URLENCODED:
            return self.parts
        pairs = parse_qsl(body.content.decode("utf-8", "replace"), keep_blank_values=True)
        return {name: Part(name, "", bytearray(text.encode())) for name, text in pairs}
