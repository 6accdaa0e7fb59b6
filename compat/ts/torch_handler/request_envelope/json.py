"""Takes `instances` and answers `predictions`, as TensorFlow Serving."""  # noqa: A005 - TorchServe chose the name

import base64
import json
from typing import Any

from ts.torch_handler.request_envelope.base import InstancesEnvelope, document_of


class JSONEnvelope(InstancesEnvelope):
    """Opens `{"instances": [...]}` and closes `{"predictions": [...]}` as text."""

    def open_row(self, row: Any) -> Any:
        return self._from_json(row)

    def close_row(self, outputs: Any, index: int) -> Any:
        return self._to_json(outputs)

    # Envelopes that extend this one override these two.

    def _from_json(self, data: Any) -> list[Any]:
        document = data if "instances" in data else document_of(data)
        return [_unpacked(instance) for instance in document["instances"]]

    def _to_json(self, output: Any) -> Any:
        return json.dumps({"predictions": output})


def _unpacked(instance: Any) -> Any:
    """Decodes base64 where an instance, or one of its values, is `{"b64": ...}`."""
    if not isinstance(instance, dict):
        return instance
    if list(instance) == ["b64"]:
        return base64.b64decode(instance["b64"])
    return {
        name: _unpacked(value) if isinstance(value, dict) and list(value) == ["b64"] else value
        for name, value in instance.items()
    }
