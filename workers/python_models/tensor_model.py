"""Serves a file that needs no code: rows are tensors, by name and shape from the file."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from ts.torch_handler.request_envelope.tensors import BYTES

from batching.errors import BadRequest, PredictionFailed
from batching.protocol import Part
from ferry.modeling import BadInput, Model
from workers.python_models import arrays
from workers.python_models.decoding import one_row
from workers.python_models.row import Row
from workers.python_models.tensor_files import (
    DYNAMIC,
    Net,
    Port,
    how_to_export,
    is_one_by_one,
    load_net,
)

log = logging.getLogger(__name__)


class TensorModel(Model):
    """An ONNX, torch.export or TorchScript file whose first axis is the batch."""

    _net: Net
    _is_one_by_one: bool

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, device: str) -> None:
        self._net = load_net(self._path, device)
        self._is_one_by_one = is_one_by_one(self._path, self._net.inputs)
        if self._is_one_by_one:
            log.warning(
                "%s: the first axis is fixed to 1, so rows are run one by one: %s",
                self._path.name,
                how_to_export(self._path),
            )

    def interface(self) -> dict[str, Any]:
        net = self._net
        schema: dict[str, Any] = {"type": "array"}
        if len(net.inputs) > 1:
            properties = {port.name: {"type": "array"} for port in net.inputs}
            schema = {"type": "object", "properties": properties, "required": list(properties)}
        return {
            "summary": "",
            "input": {"kind": "tensor", "type": "", "schema": schema},
            "inputs": [port.described(_whole_or_float(net)) for port in net.inputs],
            "outputs": [port.described(net.float_datatype) for port in net.outputs],
        }

    @property
    def output_names(self) -> Sequence[str]:
        """Returns the names that the file has for its outputs."""
        return [port.name for port in self._net.outputs]

    def read_row(self, row: Row) -> dict[str, Any]:
        """Returns an array for each input, without the axis of the batch.

        Raises:
            BadInput, BadRequest: the request does not have them.
        """
        values = self._values(row)
        names = [port.name for port in self._net.inputs]
        if sorted(values) != sorted(names):
            raise BadInput(
                f"The inputs of this model are {', '.join(names)}, not {', '.join(values)}."
            )
        return {port.name: _array(self._net, port, values[port.name]) for port in self._net.inputs}

    def predict(self, batch: list[dict[str, Any]]) -> list[Any]:
        groups = defaultdict(list)
        for place, row in enumerate(batch):
            alike = [(array.shape, array.dtype.str) for array in row.values()]
            groups[place if self._is_one_by_one else repr(alike)].append(place)
        outputs: list[Any] = [None] * len(batch)
        for places in groups.values():
            for start in range(0, len(places), self._net.most_rows):
                chosen = places[start : start + self._net.most_rows]
                rows = self._run_or_refuse([batch[place] for place in chosen])
                for place, output in zip(chosen, rows, strict=True):
                    outputs[place] = output
        return outputs

    def _run_or_refuse(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Runs rows; what fails alone is refused where no shape was there to check it by."""
        try:
            return self._run(rows)
        except RuntimeError as error:
            is_checked = all(port.shape is not None for port in self._net.inputs)
            if is_checked or len(rows) > 1 or "CUDA" in str(error):
                raise
            sent = ", ".join(
                f"{name} {one.dtype} {list(one.shape)}" for name, one in rows[0].items()
            )
            reason = str(error).strip().splitlines()[-1]  # TorchScript's source stands before it
            return [BadInput(f"The model does not take {sent}: {reason}")]

    def _run(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        np = import_module("numpy")
        found = self._net.run({name: np.stack([row[name] for row in rows]) for name in rows[0]})
        for name, value in found.items():
            shape = list(getattr(value, "shape", ()))
            if shape[:1] != [len(rows)]:
                raise PredictionFailed(
                    f"Output {name} has shape {shape} for {len(rows)} rows: its first axis must be "
                    "the batch."
                )
        if len(found) == 1:
            return list(next(iter(found.values())))
        return [{name: value[i] for name, value in found.items()} for i in range(len(rows))]

    def _values(self, row: Row) -> Mapping[str, Any]:
        """Returns what the request has for each name: a tensor, an array, or JSON."""
        names = [port.name for port in self._net.inputs]
        if row.tensors is not None:
            return row.tensors
        if len(row.parts) > 1 or set(row.parts) & set(names):
            return {name: _value(part) for name, part in row.parts.items()}
        value = _value(row.body)
        if isinstance(value, dict):
            return value
        if len(names) > 1:
            raise BadInput(
                f"Several inputs are wanted, {', '.join(names)}: as a JSON object, a form with a "
                ".npy file for each, or Open Inference tensors."
            )
        return {names[0]: value}


def _value(part: Part) -> Any:
    if arrays.is_npy(part.content):
        return arrays.read_npy(part.content)
    try:
        return msgspec.json.decode(part.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The body is neither JSON nor a .npy file: {error}.") from error


def _whole_or_float(net: Net) -> str:
    return "INT64" if net.has_embedding else net.float_datatype


def _array(net: Net, port: Port, value: Any) -> Any:
    """Returns the input's array, of its type and shape.

    Raises:
        BadInput: it cannot be made of this value without loss, or has another shape.
    """
    np = import_module("numpy")
    array = _unconverted(port, value)
    is_whole = array.dtype.kind in "biu" and (hasattr(value, "dtype") or hasattr(value, "datatype"))
    if not port.datatype and array.dtype.kind in "biu" and (is_whole or net.has_embedding):
        return array
    datatype = port.datatype or net.float_datatype
    wanted = object if datatype == BYTES else np.dtype(arrays.DTYPES[datatype])
    with np.errstate(all="ignore"):
        converted = array.astype(wanted, copy=False)
    if datatype != BYTES and not _is_kept(array, converted):
        raise BadInput(f"Input {port.name} is of {datatype}: a value of it is none.")
    if port.shape is not None and not _fits(converted.shape, port.shape[1:]):
        raise BadInput(
            f"Input {port.name} wants a row of shape {list(port.shape[1:])}, not "
            f"{list(converted.shape)}."
        )
    return converted


def _unconverted(port: Port, value: Any) -> Any:
    """Returns text or numbers as an array, without the protocol's axis of the batch."""
    np = import_module("numpy")
    if hasattr(value, "datatype"):
        is_row = port.shape is not None and len(value.shape) < len(port.shape)
        if is_row or port.shape is None:
            value = value if is_row else one_row(value)
        elif value.shape[:1] == [1]:
            value = type(value)(value.datatype, value.shape[1:], value.values)
        array = arrays.array_of(value)
    else:
        try:
            array = np.asarray(value)
            if array.dtype.kind == "S":
                array = np.char.decode(array, "utf-8")
        except (ValueError, TypeError, OverflowError) as error:
            raise BadInput(f"Input {port.name} is not an array: {error}.") from error
    is_text = array.dtype.kind in "UO" and all(isinstance(one, str) for one in array.flat)
    if is_text != (port.datatype == BYTES) or (array.dtype.kind not in "biuf" and not is_text):
        wanted = "text in UTF-8" if port.datatype == BYTES else "numbers"
        raise BadInput(f"Input {port.name} is not an array of {wanted}.")
    return array


def _is_kept(array: Any, converted: Any) -> bool:
    """Returns whether whole numbers stayed what they were, and others finite."""
    np = import_module("numpy")
    if converted.dtype.kind == "f":
        return bool(np.array_equal(np.isfinite(array), np.isfinite(converted)))
    return bool(np.array_equal(array, converted))


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(
        allowed in (DYNAMIC, axis) for axis, allowed in zip(shape, wanted, strict=True)
    )
