"""Serves a file that needs no code: ONNX, torch.export's .pt2, or TorchScript.

Rows are tensors, by name and shape from the file.
"""

import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ts.torch_handler.request_envelope.tensors import BF16, BY_DTYPE, BYTES, Tensor

from batching.errors import PredictionFailed
from ferry.modeling import BadInput
from workers.python_models import arrays
from workers.python_models.decoding import Decoder, Row
from workers.python_models.python_model import FileModel

# Of an axis.
DYNAMIC = -1
OUTPUT_NAME = "output"
# What onnxruntime takes from numpy, which has no BF16.
_ONNX_TYPES = BY_DTYPE | {"float": "FP32", "double": "FP64", "string": BYTES, "bfloat16": ""}
_EXPORT = {
    ".onnx": 'torch.onnx.export(model, (example,), "net.onnx", dynamo=True, '
    "dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))",
    ".pt2": "torch.export.export(model, (example,), "
    "dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))",
}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output, as the Open Inference Protocol describes it.

    Attributes:
        name: in the file.
        datatype: of the protocol.
        shape: with the axis of the batch.
        likely_float: where the file says neither type nor shape, so that these are only likely:
            the datatype that numbers with a point become.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    likely_float: str = ""

    def described(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class Net:
    """A loaded file: `run` takes arrays by input name, and returns arrays or tensors by name."""

    inputs: Sequence[Port]
    outputs: Sequence[Port]
    run: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    most_rows: int = sys.maxsize


class TensorModel(FileModel):
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
        for index, row in enumerate(batch):
            alike = [(array.shape, array.dtype.str) for array in row.values()]
            groups[index if self._is_one_by_one else repr(alike)].append(index)
        outputs: list[Any] = [None] * len(batch)
        for indexes in groups.values():
            for start in range(0, len(indexes), self._net.most_rows):
                chosen = indexes[start : start + self._net.most_rows]
                rows = self._run_or_refuse([batch[index] for index in chosen])
                for index, output in zip(chosen, rows, strict=True):
                    outputs[index] = output
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
                f"{name} {array.dtype} {list(array.shape)}" for name, array in rows[0].items()
            )
            reason = str(error).strip().splitlines()[-1]  # TorchScript's source stands before it
            return [BadInput(f"The model does not take {sent}: {reason}")]

    def _run(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        np = import_module("numpy")
        outputs = self._net.run({name: np.stack([row[name] for row in rows]) for name in rows[0]})
        for name, value in outputs.items():
            shape = list(getattr(value, "shape", ()))
            if shape[:1] != [len(rows)]:
                raise PredictionFailed(
                    f"Output {name} has shape {shape} for {len(rows)} rows: its first axis must be "
                    "the batch."
                )
        if len(outputs) == 1:
            return list(next(iter(outputs.values())))
        return [{name: value[i] for name, value in outputs.items()} for i in range(len(rows))]

    def _read_row(self, row: Row) -> dict[str, Any]:
        values = self._values(row)
        ports = {port.name: port for port in self._net.inputs}
        if values.keys() != ports.keys():
            raise BadInput(
                f"The inputs of this model are {', '.join(ports)}, not {', '.join(values)}."
            )
        return {name: _array(port, values[name]) for name, port in ports.items()}

    def _values(self, row: Row) -> Mapping[str, Any]:
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
    """Returns the input's array, of its type and shape."""
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
    is_text = array.dtype.kind in "UO" and all(isinstance(value, str) for value in array.flat)
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


# --- files


def load_net(path: Path, device: str) -> Net:
    """Loads the file.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it cannot be served; the text says why, and what would help.
        Exception: whatever its loader raises.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    loaders = {".onnx": _load_onnx, ".pt2": _load_pt2}
    return loaders.get(path.suffix, _load_torchscript)(path, import_module("torch").device(device))


def is_one_by_one(path: Path, inputs: Sequence[Port]) -> bool:
    """Returns whether the file takes one row at a time, as its first axis is fixed to 1."""
    fixed = {port.name: list(port.shape[:1]) for port in inputs if not port.likely_float}
    for name, first in fixed.items():
        if first not in ([DYNAMIC], [1]):
            what = f"fixed to {first[0]}" if first else "missing"
            raise ValueError(f"The first axis of input {name} is {what}: {how_to_export(path)}")
    return [1] in fixed.values()


def how_to_export(path: Path) -> str:
    return f"it is for the batch. Export the model with a dynamic one: {_EXPORT[path.suffix]}"


def _load_onnx(path: Path, device: Any) -> Net:
    session = import_module("ts.torch_handler.weights").load_onnx(str(path), device)
    outputs = [_onnx_port(value) for value in session.get_outputs()]
    names = [port.name for port in outputs]

    def run(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(zip(names, session.run(None, dict(arrays)), strict=True))

    return Net([_onnx_port(value) for value in session.get_inputs()], outputs, run)


def _onnx_port(value: Any) -> Port:
    datatype = _ONNX_TYPES.get(value.type.removeprefix("tensor(").removesuffix(")"))
    if not datatype:
        raise ValueError(
            f"{value.name} is a {value.type}, which cannot be served: export the model with "
            "tensors of numbers (float32 instead of bfloat16), bool or string. (Classifiers of "
            "scikit-learn: options={'zipmap': False}.)"
        )
    return Port(value.name, datatype, _axes(value.shape))


def _load_pt2(path: Path, device: Any) -> Net:
    module = import_module("ts.torch_handler.weights").load_pt2(str(path), device)
    if not hasattr(module, "graph"):
        raise ValueError(
            f"{path.name} is compiled by AOTInductor, and does not say its inputs: serve it with a "
            "handler, or a model in Python"
        )
    pytree = import_module("torch.utils._pytree")
    in_spec, out_spec = module._in_spec, module._out_spec  # noqa: SLF001 - torch has no public name
    indexes = module.graph.find_nodes(op="placeholder")
    inputs = [_torch_port(node.target, node.meta.get("val")) for node in indexes]
    values = module.graph.find_nodes(op="output")[0].meta["val"]
    outputs = _named(pytree.tree_unflatten(list(values), out_spec))

    def run(tensors: Sequence[Any]) -> Any:
        arguments, keywords = pytree.tree_unflatten(list(tensors), in_spec)
        return module(*arguments, **keywords)

    return Net(
        inputs,
        [_torch_port(name, value) for name, value in outputs.items()],
        _on_device(run, inputs, device),
        most_rows=min((_most_rows(node.meta["val"]) for node in indexes), default=sys.maxsize),
    )


def _most_rows(value: Any) -> int:
    """Returns how long the first axis of an input may be: `Dim("batch", max=8)` is checked."""
    symbol = getattr(value.shape[0], "node", None) if len(value.shape) else None
    if symbol is None:
        return sys.maxsize
    upper = symbol.shape_env.bound_sympy(symbol.expr).upper
    return int(upper) if upper.is_Integer else sys.maxsize


def _torch_port(name: str, value: Any) -> Port:
    datatype = _datatype(value)
    if not datatype:
        raise ValueError(
            f"{name} is no tensor of numbers or bool: export the model with such ones alone"
        )
    return Port(name, datatype, _axes(value.shape))


def _datatype(value: Any) -> str:
    return BY_DTYPE.get(str(getattr(value, "dtype", "")).removeprefix("torch."), "")


def _axes(shape: Sequence[Any]) -> list[int]:
    return [axis if isinstance(axis, int) else DYNAMIC for axis in shape]


def _load_torchscript(path: Path, device: Any) -> Net:
    try:
        module = import_module("ts.torch_handler.weights").load_torchscript(str(path), device)
    except RuntimeError as error:
        raise ValueError(
            f"{path.name} is not TorchScript. A state dict needs the model's class: export the "
            "model with torch.export, or write a model in Python"
        ) from error
    module.eval()
    arguments = module.forward.schema.arguments[1:]
    wanted = [argument for argument in arguments if not argument.has_default_value()]
    if not wanted or any(str(argument.type) != "Tensor" for argument in wanted):
        raise ValueError(f"{path.name} has a forward that takes more than tensors")
    weights = [*module.parameters(), *module.buffers()]
    likely_float = next(
        (_datatype(weight) for weight in weights if weight.is_floating_point()), "FP32"
    )
    is_whole = "aten::embedding" in str(module.inlined_graph)
    shape = [DYNAMIC]
    if len(wanted) == 1:
        shape += _likely_row(module, weights, device, is_whole)
    datatype = "INT64" if is_whole else likely_float
    inputs = [Port(argument.name, datatype, shape, likely_float) for argument in wanted]
    return Net(inputs, [], _on_device(lambda tensors: module(*tensors), inputs, device))


def _likely_row(module: Any, weights: Sequence[Any], device: Any, is_whole: bool) -> list[int]:
    """Returns the shape of a row for the first weights; [] if the network does not run with it."""
    torch = import_module("torch")
    first = next((weight for weight in weights if weight.dim() > 1), None)
    if first is None:
        return []
    row = [DYNAMIC] if is_whole else [first.shape[1], *[DYNAMIC] * (first.dim() - 2)]
    shape = [1, *(64 if axis == DYNAMIC else axis for axis in row)]
    try:
        with torch.no_grad():
            dtype = torch.int64 if is_whole else first.dtype
            module(torch.zeros(shape, dtype=dtype, device=device))
    except RuntimeError:  # another shape is wanted, as requests will show
        return []
    return row


def _on_device(
    run: Callable[[Sequence[Any]], Any], inputs: Sequence[Port], device: Any
) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    torch = import_module("torch")

    def run_there(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        tensors = []
        for port in inputs:
            tensor = torch.from_numpy(arrays[port.name]).to(device)
            tensors.append(tensor.bfloat16() if port.datatype == BF16 else tensor)
        with torch.no_grad():
            return {name: value.cpu() for name, value in _named(run(tensors)).items()}

    return run_there


def _named(outputs: Any) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return {str(name): value for name, value in outputs.items()}
    if not isinstance(outputs, list | tuple):
        return {OUTPUT_NAME: outputs}
    if len(outputs) == 1:
        return {OUTPUT_NAME: outputs[0]}
    return {f"{OUTPUT_NAME}_{number}": value for number, value in enumerate(outputs)}
