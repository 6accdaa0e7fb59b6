"""A request as a Python model's decoder sees it: parts with types, or tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import parse_qsl

from ts.torch_handler.request_envelope.tensors import Tensor

from batching.errors import BadRequest
from batching.protocol import OPEN_INFERENCE_TYPE, Part, Request
from workers.python_models.open_inference import Inference

_URLENCODED = "application/x-www-form-urlencoded"
# TorchServe's names for a whole body.
_WHOLE = ("body", "data")


@dataclass(frozen=True)
class Row:
    """One request: its parts by name, undecoded, or one of the Open Inference Protocol."""

    parts: Mapping[str, Part]
    inference: Inference | None = None

    @classmethod
    def of(cls, request: Request) -> "Row":
        """Reads the request.

        Raises:
            BadRequest, BadTensor: it is no inference request, though its type says so.
        """
        parts = {part.name: part for part in request.parts}
        body = parts.get("body")
        if body is not None and body.content_type.startswith(f"{OPEN_INFERENCE_TYPE};json="):
            json_bytes = int(body.content_type.rpartition("=")[2])
            return cls({}, Inference.read(body.content, json_bytes))
        return cls(parts)

    @property
    def tensors(self) -> Mapping[str, Tensor] | None:
        return None if self.inference is None else self.inference.inputs

    @property
    def body(self) -> Part:
        """Returns the part that is meant where a model takes one value.

        Raises:
            BadRequest: there are several, and none is called `body` or `data`.
        """
        for name in _WHOLE:
            if name in self.parts:
                return self._field_of(self.parts[name])
        if len(self.parts) == 1:
            return next(iter(self.parts.values()))
        names = ", ".join(sorted(self.parts)) or "none"
        raise BadRequest(f"One value is wanted, as the body or as a field `data`; fields: {names}.")

    @cached_property
    def fields(self) -> Mapping[str, Part]:
        """Returns the parts of a form, those of an urlencoded body among them."""
        body = self.parts.get("body")
        if len(self.parts) != 1 or body is None or body.content_type != _URLENCODED:
            return self.parts
        pairs = parse_qsl(body.content.decode("utf-8", "replace"), keep_blank_values=True)
        return {name: Part(name, "", bytearray(text.encode())) for name, text in pairs}

    def _field_of(self, part: Part) -> Part:
        # `curl -d` says that any body is a form; `data=…` is one, as TorchServe's clients send it.
        if part.content_type == _URLENCODED and part.content.startswith((b"data=", b"body=")):
            return next(iter(self.fields.values()))
        return part
