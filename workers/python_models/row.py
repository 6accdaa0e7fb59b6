"""A request as a Python model's decoder sees it: parts with types, or tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import parse_qsl

from batching.errors import BadRequest
from batching.protocol import OPEN_INFERENCE_TYPE, Part
from workers.python_models.open_inference import Inference

_URLENCODED = "application/x-www-form-urlencoded"
# TorchServe's names for a whole body.
_WHOLE = ("body", "data")


@dataclass(frozen=True)
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
        if body is None or not body.content_type.startswith(f"{OPEN_INFERENCE_TYPE};json="):
            return None
        return Inference.read(body.content, int(body.content_type.rpartition("=")[2]))

    @property
    def body(self) -> Part:
        """Returns the part that is meant where a model takes one value.

        Raises:
            BadRequest: there are several, and none is called `body` or `data`.
        """
        part = self.whole or (next(iter(self.parts.values())) if len(self.parts) == 1 else None)
        if part is None:
            names = ", ".join(sorted(self.parts)) or "none"
            raise BadRequest(
                f"One value is wanted, as the body or as a field `data`; fields: {names}."
            )
        # `curl -d` says that any body is a form; `data=…` is one, as TorchServe's clients send it.
        is_form = part.content_type == _URLENCODED and part.content.startswith((b"data=", b"body="))
        return next(iter(self.fields.values())) if is_form and len(self.fields) == 1 else part

    @property
    def whole(self) -> Part | None:
        return self.parts.get("body") or self.parts.get("data")

    @cached_property
    def fields(self) -> Mapping[str, Part]:
        """Returns the parts of a form, those of an urlencoded body among them."""
        body = self.parts.get("body")
        if len(self.parts) != 1 or body is None or body.content_type != _URLENCODED:
            return self.parts
        pairs = parse_qsl(body.content.decode("utf-8", "replace"), keep_blank_values=True)
        return {name: Part(name, "", bytearray(text.encode())) for name, text in pairs}
