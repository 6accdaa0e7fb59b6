"""Serves models without code: ONNX, torch.export's .pt2, TorchScript, and transformers' pipelines.

Files take tensors as rows, with the names and shapes that the file has.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ts.torch_handler.open_inference import BF16, BY_DTYPE, BYTES, OUTPUT_NAME, Tensor

from batching.errors import PredictionFailed
from ferry.modeling import BadInput
from workers.python_models.decoding import (
    DTYPES,
    Decoder,
    FileModel,
    Row,
    array_of,
    decoder_of,
    values_of,
    without_batch,
)

# The length of an axis that may have any.
DYNAMIC = -1
# What onnxruntime takes from numpy, which has no BF16.
_ONNX_TYPES = BY_DTYPE | {"float": "FP32", "double": "FP64", "string": BYTES, "bfloat16": ""}
_EXPORT = {
    ".onnx": 'torch.onnx.export(model, (example,), "net.onnx", dynamo=True, '
    "dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))",
    ".pt2": "torch.export.export(model, (example,), "
    "dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))",
}
# How the name of an architecture ends -> the task.
_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForImageClassification": "image-classification",
    "ForObjectDetection": "object-detection",
}
_OF_IMAGES = frozenset({"image-classification", "object-detection", "image-feature-extraction"})
# Task of text -> options of a call. On a GPU a text longer than the network's positions would end
# the worker.
_OPTIONS_OF_TEXT: dict[str, dict[str, Any]] = {
    "text-classification": {"truncation": True},
    "token-classification": {},
    "fill-mask": {"tokenizer_kwargs": {"truncation": True}},
    "text-generation": {},
    "feature-extraction": {"truncation": True},
}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Port:
    """Describes an input or output as the Open Inference Protocol does.

    Attributes:
        name: in the file.
        datatype: of the protocol.
        shape: with the axis of the batch; empty where the file says neither type nor shape.
        likely_float: the datatype of numbers with a point, where the file says no type.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    likely_float: str = ""

    def described(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    def read(self, value: Any) -> Any:
        """Returns the array of a row's input, of this type and shape."""
        wants_text = self.datatype == BYTES
        if isinstance(value, Tensor):
            value = without_batch(value, 2 if self.likely_float else len(self.shape))
        try:
            array = array_of(value)
            if array.dtype.kind == "S":
                array = import_module("numpy").char.decode(array, "utf-8")
        except ValueError as error:
            raise BadInput(f"Input {self.name} is {error}.") from error
        is_text = array.dtype.kind in "UO" and all(isinstance(text, str) for text in array.flat)
        if is_text != wants_text or not (is_text or array.dtype.kind in "biuf"):
            wanted = "text in UTF-8" if wants_text else "numbers"
            raise BadInput(f"Input {self.name} is not an array of {wanted}.")
        if self.likely_float:
            is_typed = hasattr(value, "shape") or self.datatype == "INT64"
            is_kept = array.dtype.kind in "biu" and is_typed
            return array if is_kept else self._converted(array, self.likely_float)
        wanted_shape = list(self.shape[1:])
        lengths = zip(array.shape, wanted_shape, strict=False)
        fits = all(allowed in (DYNAMIC, length) for length, allowed in lengths)
        if len(wanted_shape) != array.ndim or not fits:
            raise BadInput(
                f"Input {self.name} wants a row of shape {wanted_shape}, not {list(array.shape)}."
            )
        return array.astype(object) if wants_text else self._converted(array, self.datatype)

    def _converted(self, array: Any, datatype: str) -> Any:
        """Returns the array in this type; refuses values that it cannot hold."""
        np = import_module("numpy")
        with np.errstate(all="ignore"):
            converted = array.astype(DTYPES[datatype], copy=False)
        compared = np.isfinite if converted.dtype.kind == "f" else np.asarray
        if not np.array_equal(compared(array), compared(converted)):
            raise BadInput(f"Input {self.name} has a value that {datatype} cannot hold.")
        return converted


@dataclass(frozen=True, slots=True)
class Net:
    """Holds a loaded file: `run` takes arrays by name, and returns arrays or tensors by name."""

    inputs: Sequence[Port]
    outputs: Sequence[Port]
    run: Callable[[Mapping[str, Any]], Mapping[str, Any]]


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
            alike = tuple((array.shape, array.dtype.str) for array in row.values())
            groups[index if self._is_one_by_one else alike].append(index)
        outputs: list[Any] = [None] * len(batch)
        for indexes in groups.values():
            rows = self._run([batch[index] for index in indexes])
            for index, output in zip(indexes, rows, strict=True):
                outputs[index] = output
        return outputs

    def _run(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        np = import_module("numpy")
        stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        try:
            outputs = self._net.run(stacked)
        except RuntimeError as error:
            # Without a shape to check it by, a row that fails alone is the client's mistake.
            is_checked = not any(port.likely_float for port in self._net.inputs)
            if is_checked or len(rows) > 1 or "CUDA" in str(error):
                raise
            sent = (f"{name} {it.dtype} {list(it.shape)}" for name, it in rows[0].items())
            reason = str(error).strip().splitlines()[-1]  # before it stands TorchScript's source
            return [BadInput(f"The model does not take {', '.join(sent)}: {reason}")]
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
        ports = {port.name: port for port in self._net.inputs}
        if row.inference is not None:
            values: Mapping[str, Any] = row.inference.inputs
        elif len(row.parts) > 1 or set(row.parts) & set(ports):
            values = {name: values_of(part.content) for name, part in row.parts.items()}
        else:
            value = values_of(row.body.content)
            if not isinstance(value, dict) and len(ports) > 1:
                raise BadInput(
                    f"Several inputs are wanted, {', '.join(ports)}: as a JSON object, a form with "
                    "a .npy file for each, or Open Inference tensors."
                )
            values = value if isinstance(value, dict) else dict.fromkeys(ports, value)
        if values.keys() != ports.keys():
            raise BadInput(
                f"The inputs of this model are {', '.join(ports)}, not {', '.join(values)}."
            )
        return {name: port.read(values[name]) for name, port in ports.items()}


# --- files


def load_net(path: Path, device: str) -> Net:
    """Loads a file without code.

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
    """Returns whether the file takes one row at a time, as its first axis is fixed to 1.

    Raises:
        ValueError: it is fixed to another length, or there is none.
    """
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

    def port(value: Any) -> Port:
        datatype = _ONNX_TYPES.get(value.type.removeprefix("tensor(").removesuffix(")"))
        if not datatype:
            raise ValueError(
                f"{value.name} is a {value.type}, which cannot be served: export the model with "
                "tensors of numbers (float32 instead of bfloat16), bool or string. (Classifiers of "
                "scikit-learn: options={'zipmap': False}.)"
            )
        return Port(value.name, datatype, _axes(value.shape))

    inputs, outputs = map(port, session.get_inputs()), [*map(port, session.get_outputs())]
    names = [output.name for output in outputs]

    def run(named: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(zip(names, session.run(None, dict(named)), strict=True))

    return Net([*inputs], outputs, run)


def _load_pt2(path: Path, device: Any) -> Net:
    module = import_module("ts.torch_handler.weights").load_pt2(str(path), device)
    if not hasattr(module, "graph"):
        raise ValueError(
            f"{path.name} is compiled by AOTInductor, and does not say its inputs: serve it with a "
            "handler, or a model in Python"
        )

    def port(name: str, value: Any) -> Port:
        if not (datatype := _datatype(value)):
            raise ValueError(
                f"{name} is no tensor of numbers or bool: export the model with such tensors only"
            )
        return Port(name, datatype, _axes(value.shape))

    pytree = import_module("torch.utils._pytree")
    in_spec, out_spec = module._in_spec, module._out_spec  # noqa: SLF001 - torch has no public name
    nodes = module.graph.find_nodes(op="placeholder")
    inputs = [port(node.target, node.meta.get("val")) for node in nodes]
    values = module.graph.find_nodes(op="output")[0].meta["val"]
    outputs = _named(pytree.tree_unflatten(list(values), out_spec))

    def run(tensors: Sequence[Any]) -> Any:
        arguments, keywords = pytree.tree_unflatten(list(tensors), in_spec)
        return module(*arguments, **keywords)

    ports = [port(name, value) for name, value in outputs.items()]
    return Net(inputs, ports, _on_device(run, inputs, device))


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
    floats = [_datatype(weight) for weight in weights if weight.is_floating_point()]
    likely_float = [*floats, "FP32"][0]
    datatype = "INT64" if "aten::embedding" in str(module.inlined_graph) else likely_float
    inputs = [Port(argument.name, datatype, (), likely_float) for argument in wanted]
    return Net(inputs, [], _on_device(lambda tensors: module(*tensors), inputs, device))


def _datatype(value: Any) -> str:
    return BY_DTYPE.get(str(getattr(value, "dtype", "")).removeprefix("torch."), "")


def _axes(shape: Sequence[Any]) -> list[int]:
    return [axis if isinstance(axis, int) else DYNAMIC for axis in shape]


def _on_device(
    run: Callable[[Sequence[Any]], Any], inputs: Sequence[Port], device: Any
) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    torch = import_module("torch")

    def run_there(named: Mapping[str, Any]) -> Mapping[str, Any]:
        tensors = []
        for port in inputs:
            tensor = torch.from_numpy(named[port.name]).to(device)
            tensors.append(tensor.bfloat16() if port.datatype == BF16 else tensor)
        with torch.no_grad():
            return {name: value.cpu() for name, value in _named(run(tensors)).items()}

    return run_there


def _named(outputs: Any) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return {str(name): value for name, value in outputs.items()}
    values = outputs if isinstance(outputs, list | tuple) else [outputs]
    if len(values) == 1:
        return {OUTPUT_NAME: values[0]}
    return {f"{OUTPUT_NAME}_{number}": value for number, value in enumerate(values)}


# --- transformers


class Pipeline(FileModel):
    _pipeline: Any

    def __init__(self, name: str) -> None:
        self._name = name

    def load(self, device: str) -> None:
        """Makes the pipeline; code that comes with a model is not run.

        Raises:
            ImportError: transformers is not installed.
            ValueError: the task has other rows than text or images, or cannot be told.
        """
        transformers = import_module("transformers")
        is_task = self._name in import_module("transformers.pipelines").get_supported_tasks()
        task = self._name if is_task else _task_of(Path(self._name))
        model = None if is_task else self._name
        made = transformers.pipeline(task, model, device=device, trust_remote_code=False)
        if made.task not in _OPTIONS_OF_TEXT.keys() | _OF_IMAGES:
            raise ValueError(
                f"The task {made.task} takes neither text nor one image: write a model in Python "
                "around the pipeline"
            )
        tokenizer = getattr(made, "tokenizer", None)
        if tokenizer is not None and tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token  # a batch needs one
        is_of_images = made.task in _OF_IMAGES
        self.decoder = decoder_of(import_module("PIL.Image").Image if is_of_images else str)
        self.interface = {"summary": f"{made.task} by transformers"}
        self._pipeline = made

    def predict(self, batch: list[Any]) -> list[Any]:
        # Some pipelines answer a list of one row without the list, but never a generator.
        options = _OPTIONS_OF_TEXT.get(self._pipeline.task, {})
        return list(self._pipeline((row for row in batch), batch_size=len(batch), **options))


def _task_of(folder: Path) -> str | None:
    """Returns the task of a model in a local folder; None for models of the hub, which knows it."""
    if not folder.is_dir():
        return None
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architectures = [str(name) for name in config.get("architectures") or []]
    for name in architectures:
        for suffix, task in _TASKS.items():
            if name.endswith(suffix):
                return task
    raise ValueError(
        f"No task is known for {', '.join(architectures) or 'no architecture'} (config.json of "
        f"{folder}): write a model in Python around the pipeline"
    )
