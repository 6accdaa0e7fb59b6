"""Serves a file that needs no code: rows are tensors, by name and shape from the file."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ts.torch_handler.request_envelope.tensors import BYTES, Tensor

from batching.errors import PredictionFailed
from ferry.modeling import BadInput
from workers.python_models import arrays
from workers.python_models.decoding import Decoder
from workers.python_models.python_model import FileModel
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


class TensorModel(FileModel):
    """An ONNX, torch.export or TorchScript file whose first axis is the batch."""

    _net: Net
    _is_one_by_one: bool

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, device: str) -> None:
        self._net = net = load_net(self._path, device)
        self._is_one_by_one = is_one_by_one(self._path, net.inputs)
        if self._is_one_by_one:
            log.warning(
                "%s: the first axis is fixed to 1, so rows are run one by one: %s",
                self._path.name,
                how_to_export(self._path),
            )
        schema: dict[str, Any] = {"type": "array"}
        if len(net.inputs) > 1:
            properties = {port.name: {"type": "array"} for port in net.inputs}
            schema = {"type": "object", "properties": properties, "required": list(properties)}
        self.decoder = Decoder("tensor", "", self._read_row, schema)
        self.interface = {
            "summary": "",
            "inputs": [port.described() for port in net.inputs],
            "outputs": [port.described() for port in net.outputs],
        }

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
            is_checked = not any(port.likely_float for port in self._net.inputs)
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

    def _read_row(self, row: Row) -> dict[str, Any]:
        """Returns an array for each input, without the axis of the batch."""
        values = self._values(row)
        ports = {port.name: port for port in self._net.inputs}
        if values.keys() != ports.keys():
            raise BadInput(
                f"The inputs of this model are {', '.join(ports)}, not {', '.join(values)}."
            )
        return {name: _array(port, values[name]) for name, port in ports.items()}

    def _values(self, row: Row) -> Mapping[str, Any]:
        """Returns what the request has for each name: a tensor, an array, or JSON."""
        names = [port.name for port in self._net.inputs]
        if row.inference is not None:
            return row.inference.inputs
        if len(row.parts) > 1 or set(row.parts) & set(names):
            return {name: arrays.values_of(part.content) for name, part in row.parts.items()}
        value = arrays.values_of(row.body.content)
        if isinstance(value, dict):
            return value
        if len(names) > 1:
            raise BadInput(
                f"Several inputs are wanted, {', '.join(names)}: as a JSON object, a form with a "
                ".npy file for each, or Open Inference tensors."
            )
        return {names[0]: value}


def _array(port: Port, value: Any) -> Any:
    """Returns the input's array, of its type and shape.

    Raises:
        BadInput: it cannot be made of this value without loss, or has another shape.
    """
    array = _unconverted(port, value)
    if port.likely_float:
        if array.dtype.kind in "biu" and (hasattr(value, "shape") or port.datatype == "INT64"):
            return array
        return _converted(port.name, array, port.likely_float)
    converted = _converted(port.name, array, port.datatype)
    wanted = port.shape[1:]
    fits = [allowed in (DYNAMIC, axis) for axis, allowed in zip(array.shape, wanted, strict=False)]
    if len(wanted) != array.ndim or not all(fits):
        raise BadInput(
            f"Input {port.name} wants a row of shape {list(wanted)}, not {list(array.shape)}."
        )
    return converted


def _unconverted(port: Port, value: Any) -> Any:
    """Returns text or numbers as an array, without the protocol's axis of the batch."""
    np = import_module("numpy")
    if isinstance(value, Tensor):
        value = arrays.without_batch(value, 2 if port.likely_float else len(port.shape))
    try:
        array = arrays.array_of(value)
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
    except ValueError as error:
        raise BadInput(f"Input {port.name} is {error}.") from error
    is_text = array.dtype.kind in "UO" and all(isinstance(one, str) for one in array.flat)
    if is_text != (port.datatype == BYTES) or (array.dtype.kind not in "biuf" and not is_text):
        wanted = "text in UTF-8" if port.datatype == BYTES else "numbers"
        raise BadInput(f"Input {port.name} is not an array of {wanted}.")
    return array


def _converted(name: str, array: Any, datatype: str) -> Any:
    """Returns the array in this type, in which whole numbers stay what they were."""
    np = import_module("numpy")
    if datatype == BYTES:
        return array.astype(object, copy=False)
    with np.errstate(all="ignore"):
        converted = array.astype(arrays.DTYPES[datatype], copy=False)
    see = np.isfinite if converted.dtype.kind == "f" else np.asarray
    if not np.array_equal(see(array), see(converted)):
        raise BadInput(f"Input {name} is of {datatype}: a value of it is none.")
    return converted
