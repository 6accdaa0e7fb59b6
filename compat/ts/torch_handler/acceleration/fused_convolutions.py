"""Rewrites convolutions of frozen TorchScript as oneDNN wants them.

Otherwise torch brings every weight into oneDNN's layout anew for each batch of TorchScript, and the
sum and the relu behind a convolution each go through all of its output once more.

Source: torch/_inductor/fx_passes/mkldnn_fusion.py, which does the same for `torch.compile`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import _C

# torch has no public interface to a graph of TorchScript, nor types for this one.
Graph = Any
Node = Any
Value = Any
Sizes = dict[str, list[int]]

# Tracing writes this for a convolution of any kind; scripting writes `aten::conv2d`.
TRACED = "aten::_convolution"
IMAGE_DIMENSIONS = 2

FUSED = "mkldnn::_convolution_pointwise"
FUSED_IN_PLACE = "mkldnn::_convolution_pointwise_"

# These return new memory, never a view of their inputs.
FRESH = ("aten::conv2d", "aten::relu", "aten::add", "aten::max_pool2d", FUSED, FUSED_IN_PLACE)

# A batch of images.
LAYOUT = "nchw"

# x, summand, weight, bias, four settings, "add", its factor, "relu" or None and its two arguments.
SUM_INPUTS = 13

# In larger batches, bringing the weights into their layout costs too little to be worth the memory
# that it takes to find out whether one layout suits all calls.
MOST_ROWS_PACKED = 32


class Call(NamedTuple):
    """The number of rows that a model is called with, and of threads that the call may use."""

    rows: int
    threads: int


def can_fuse(device: torch.device, dtype: torch.dtype) -> bool:
    """Returns whether there is a oneDNN for this device that computes in `dtype`."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    name = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    return dtype == torch.float32 or bool(_operator(name[dtype])())


def fuse_convolutions(
    model: torch.jit.ScriptModule, example: torch.Tensor, calls: Sequence[Call]
) -> Any | None:
    """Returns the model with each convolution, and the sum and relu behind it, as one operation.

    Weights are in oneDNN's layout where all `calls` want the same layout.

    Returns None for a model without convolutions, with several inputs or with a state, and for one
    that writes into tensors in a way that torch cannot take out: then the order of its operations
    would matter.

    Args:
        model: frozen TorchScript; it stays as it is. Both share the weights that are left plain.
        example: an input of one row, in the precision of the model.
        calls: all kinds of calls that will be made.
    """
    graph = model.graph.copy()
    itself, *inputs = graph.inputs()
    for convolution in _of_kind(graph, TRACED):
        _name_as_scripted(graph, convolution)
    _run_pass("remove_mutation", graph)
    if len(inputs) != 1 or itself.uses() or _writes(graph):
        return None
    graph.eraseInput(0)
    sizes = _sizes(graph, example)
    layouts = _Layouts(calls)
    if not any([_fuse(graph, node, sizes, layouts) for node in _of_kind(graph, "aten::conv2d")]):
        return None
    for node in _of_kind(graph, FUSED):
        _write_over_summand(graph, node)
    _run_pass("constant_pooling", graph)
    _run_pass("dce", graph)
    graph.lint()
    return getattr(_C, "_create_function_from_graph")("fused", graph)  # noqa: B009 - not public


def _name_as_scripted(graph: Graph, convolution: Node) -> None:
    """Renames a traced convolution of images to `aten::conv2d`; others stay as they are.

    The switches behind `groups` are for cuDNN alone.
    """
    inputs = list(convolution.inputs())
    source, weight, bias, stride, padding, dilation, transposed, _, groups, *_ = inputs
    if transposed.toIValue() is not False or len(stride.toIValue() or ()) != IMAGE_DIMENSIONS:
        return
    inputs = [source, weight, bias, stride, padding, dilation, groups]
    _replace(graph, [convolution], "aten::conv2d", inputs)


def _replace(graph: Graph, nodes: list[Node], kind: str, inputs: list[Value]) -> Node:
    """Puts a new node in place of these, which follow each other, and returns it."""
    *_, last = nodes
    graph.setInsertPoint(last)
    new = graph.insertNode(graph.create(kind, inputs))
    new.output().setType(_C.TensorType.get())
    last.output().replaceAllUsesWith(new.output())
    for node in reversed(nodes):
        node.destroy()
    return new


class _Layouts:
    """Brings weights into oneDNN's layout."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._is_worth_it = max(call.rows for call in calls) <= MOST_ROWS_PACKED
        self._has_one: dict[str, bool] = {}

    def insert_weight(self, graph: Graph, convolution: Node, size: list[int]) -> Value:
        """Inserts the weight in the layout that every call wants; the plain one if calls disagree.

        Converting from one such layout to another is far slower than from the plain layout.
        """
        _, plain, *_ = convolution.inputs()
        _, weight, _, *settings = (value.toIValue() for value in convolution.inputs())
        if not self._is_worth_it or not isinstance(weight, torch.Tensor):
            return plain
        key = str((size, weight.shape, settings))
        if key not in self._has_one:
            self._has_one[key] = self._is_one(weight, settings, size)
        if not self._has_one[key]:
            return plain
        node = graph.create("prim::ConstantMKLDNNTensor")
        node.t_("value", _packed(weight, settings, size))
        return graph.insertNode(node).output()

    def _is_one(self, weight: torch.Tensor, settings: Any, size: list[int]) -> bool:
        rows, *others = size
        before = torch.get_num_threads()
        layouts = []
        try:
            for call in self._calls:
                torch.set_num_threads(call.threads)
                packed = _packed(weight, settings, [call.rows * rows, *others])
                layouts.append(_layout(packed))
        finally:
            torch.set_num_threads(before)
        return all(layout == layouts[0] for layout in layouts)


def _packed(weight: torch.Tensor, settings: Any, size: list[int]) -> torch.Tensor:
    stride, padding, dilation, groups = settings
    reorder = _operator("_reorder_convolution_weight")
    packed: torch.Tensor = reorder(weight, padding, stride, dilation, groups, size)
    return packed


def _layout(packed: torch.Tensor) -> list[int]:
    described: torch.Tensor = _operator("_get_mkldnn_serialized_md")(packed)
    return described.tolist()  # type: ignore[no-any-return]


def _operator(name: str) -> Any:
    return getattr(torch.ops.mkldnn, name)


def _fuse(graph: Graph, convolution: Node, sizes: Sizes, layouts: _Layouts) -> bool:
    """Replaces the convolution, with a sum and a relu behind it, by one node; false: it stays.

    Nothing in the graph writes yet, so the new node may stand where the last of the old ones stood.
    """
    if not _is_plain(convolution, sizes):
        return False
    replaced = [convolution]
    addition = _only_user(graph, convolution, "aten::add")
    summand = addition and _summand(addition, convolution, sizes)
    if summand:
        replaced.append(addition)
    relu = _only_user(graph, replaced[-1], "aten::relu")
    if relu:
        replaced.append(relu)
    graph.setInsertPoint(replaced[-1])
    source, _, bias, stride, padding, dilation, groups = convolution.inputs()
    weight = layouts.insert_weight(graph, convolution, sizes[source.debugName()])
    inputs = [weight, bias, padding, stride, dilation, groups]
    scalars = graph.insertNode(graph.create("prim::ListConstruct")).output()
    scalars.setType(_C.ListType(_C.OptionalType(_C.NumberType.get())))
    constant = graph.insertConstant
    if summand:
        inputs = [source, summand, *inputs, constant("add"), constant(1.0)]
        inputs += [constant("relu" if relu else None), scalars, constant(None)]
    else:
        inputs = [source, *inputs, constant("relu" if relu else "none"), scalars, constant("")]
    size = sizes[convolution.output().debugName()]
    sizes[_replace(graph, replaced, FUSED, inputs).output().debugName()] = size
    return True


def _is_plain(convolution: Node, sizes: Sizes) -> bool:
    """Returns whether it takes a batch of images of known size, with numbers for settings."""
    source, _, _, *settings = convolution.inputs()
    has_numbers = all(isinstance(value.toIValue(), list | int) for value in settings)
    names = (source.debugName(), convolution.output().debugName())
    return has_numbers and all(len(sizes.get(name, ())) == len(LAYOUT) for name in names)


def _summand(addition: Node, convolution: Node, sizes: Sizes) -> Value | None:
    """Returns the tensor that is added to the convolution's output, if it has the same size."""
    first, second, factor = addition.inputs()
    result = convolution.output().debugName()
    other = second if first.debugName() == result else first
    has_its_size = sizes.get(other.debugName()) == sizes[result]
    return other if has_its_size and factor.toIValue() == 1 else None


def _only_user(graph: Graph, node: Node, kind: str) -> Node | None:
    """Returns the only user of a node's output, if of that kind and outside branches and loops."""
    uses = node.output().uses()
    if len(uses) != 1 or uses[0].user.kind() != kind:
        return None
    return uses[0].user if uses[0].user.owningBlock() == graph.block() else None


def _write_over_summand(graph: Graph, node: Node) -> None:
    """Lets a fused sum go to the memory of its summand, if no other operation sees that memory.

    oneDNN then needs no new memory, which makes the fused sum faster than a separate one.
    """
    if node.inputsSize() != SUM_INPUTS:
        return
    source, summand, *others = node.inputs()
    is_unseen = all(
        user.kind() in FRESH
        and user.owningBlock() == graph.block()
        and (user == node or user.isBefore(node))
        for user in (use.user for use in summand.uses())
    )
    maker = summand.node()
    is_own = maker.kind() in FRESH and maker.owningBlock() == graph.block()
    if not (is_own and is_unseen) or source.debugName() == summand.debugName():
        return
    _replace(graph, [node], FUSED_IN_PLACE, [summand, source, *others])


def _of_kind(graph: Graph, kind: str) -> list[Node]:
    """Returns the nodes of this kind outside branches and loops."""
    return [node for node in graph.nodes() if node.kind() == kind]


def _writes(block: Any) -> bool:
    """Returns whether an operation of the block, or of its branches and loops, changes a tensor."""
    return any(
        "!" in node.schema() or any(_writes(inner) for inner in node.blocks())
        for node in block.nodes()
    )


def _sizes(graph: Graph, example: torch.Tensor) -> Sizes:
    """Returns the sizes of the tensors for an input like the example, as far as torch can tell."""
    (source,) = graph.inputs()
    source.setType(_C.TensorType.create_from_tensor(example))
    _run_pass("propagate_shapes_on_graph", graph)
    values = [source, *(value for node in graph.nodes() for value in node.outputs())]
    tensors = [value for value in values if isinstance(value.type(), _C.TensorType)]
    sizes = {value.debugName(): value.type().sizes() for value in tensors}
    # The sizes of the example must not be taken for those of every input.
    _run_pass("erase_shape_information", graph)
    return {name: size for name, size in sizes.items() if size is not None}


def _run_pass(name: str, graph: Graph) -> None:
    getattr(_C, f"_jit_pass_{name}")(graph)
