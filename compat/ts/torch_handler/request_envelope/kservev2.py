"""An envelope in the form of KServe's second protocol, the Open Inference Protocol."""

from dataclasses import replace
from typing import Any

from ts.torch_handler.request_envelope.instances import InstancesEnvelope, document_of
from ts.torch_handler.request_envelope.tensors import (
    BYTES,
    Tensor,
    check_rows,
    items_of,
    read_tensor,
    tensor_of,
)

# Of an archive that names none.
_DEFAULT_VERSION = "1.0"


class KServev2Envelope(InstancesEnvelope):
    """Reshapes tensors that come in; flattens those that the handler returns."""

    def open_row(self, row: Any) -> Any:
        descriptions = document_of(row)["inputs"]
        tensors = [_numbers(description) for description in descriptions]
        check_rows(tensor.shape for tensor in tensors if tensor)
        return [
            {**description, "data": tensor.nested() if tensor else description["data"][0]}
            for description, tensor in zip(descriptions, tensors, strict=True)
        ]

    def close_row(self, outputs: Any, index: int) -> Any:
        given = document_of(self._rows[index]).get("id")
        context = self.context
        model = (context.manifest or {}).get("model", {})
        return {
            "id": given if isinstance(given, str) and given.strip() else context.request_ids[index],
            "model_name": model.get("modelName", context.model_name),
            "model_version": model.get("modelVersion", _DEFAULT_VERSION),
            "outputs": [
                _closed_output(number, output, self._opened[index])
                for number, output in enumerate(outputs)
            ],
        }


def _numbers(description: dict[str, Any]) -> Tensor | None:
    if description["datatype"] == BYTES:
        return None
    return _alike(read_tensor(description["datatype"], description["shape"], description["data"]))


def _alike(tensor: Tensor) -> Tensor:
    """Makes all values floats if one is, as in an array."""
    if any(isinstance(value, float) for value in tensor.values):
        return replace(tensor, values=[float(value) for value in tensor.values])
    return tensor


def _closed_output(number: int, output: Any, instances: Any) -> dict[str, Any]:
    name = instances[number].get("name") if number < len(instances) else f"output-{number}"
    tensor = tensor_of(output)
    items = [] if tensor else items_of(output)
    tensor = tensor or tensor_of(items)
    if tensor is None:
        return {"name": name, "datatype": BYTES, "data": _alike_text(items), "shape": [len(items)]}
    return {
        "name": name,
        "datatype": tensor.datatype,
        "data": tensor.json_values(),
        "shape": [len(tensor.values)],
    }


def _alike_text(items: list[Any]) -> list[Any]:
    """Makes all items texts if one is and the others are numbers, as in an array."""
    is_mixed = any(isinstance(item, str) for item in items)
    if is_mixed and all(isinstance(item, (str, bool, int, float)) for item in items):
        return [str(item) for item in items]
    return items
