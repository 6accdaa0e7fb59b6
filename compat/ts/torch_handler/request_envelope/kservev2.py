"""Speaks KServe's second protocol, the Open Inference Protocol."""

from dataclasses import replace
from typing import Any

from ts.torch_handler.request_envelope.base import InstancesEnvelope, document_of
from ts.torch_handler.request_envelope.tensors import (
    BYTES,
    Tensor,
    check_rows,
    read_tensor,
    tensor_of,
)


class KServev2Envelope(InstancesEnvelope):
    """Nests the values of input tensors by their shapes; flattens the handler's outputs."""

    def open_row(self, row: Any) -> Any:
        descriptions = document_of(row)["inputs"]
        tensors = [
            None if given["datatype"] == BYTES else _numbers(given) for given in descriptions
        ]
        check_rows(tensor.shape for tensor in tensors if tensor)
        return [
            {**given, "data": tensor.nested() if tensor else given["data"][0]}
            for given, tensor in zip(descriptions, tensors, strict=True)
        ]

    def close_row(self, outputs: Any, index: int) -> Any:
        given = document_of(self._rows[index]).get("id")
        context = self.context
        model = (context.manifest or {}).get("model", {})
        return {
            "id": given if isinstance(given, str) and given.strip() else context.request_ids[index],
            "model_name": model.get("modelName", context.model_name),
            "model_version": model.get("modelVersion", "1.0"),
            "outputs": [
                _closed_output(number, output, self._opened[index])
                for number, output in enumerate(outputs)
            ],
        }


def _numbers(description: dict[str, Any]) -> Tensor:
    tensor = read_tensor(description["datatype"], description["shape"], description["data"])
    if any(isinstance(value, float) for value in tensor.values):  # then all are, as in an array
        return replace(tensor, values=[float(value) for value in tensor.values])
    return tensor


def _closed_output(number: int, output: Any, instances: Any) -> dict[str, Any]:
    name = instances[number].get("name") if number < len(instances) else f"output-{number}"
    if tensor := tensor_of(output):
        datatype, values = tensor.datatype, tensor.json_values()
    else:
        datatype, values = BYTES, output if isinstance(output, list) else [output]
    return {"name": name, "datatype": datatype, "data": values, "shape": [len(values)]}
