"""Writes small files without code: ONNX, exported programs, TorchScript, transformers."""

import json
import warnings

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.unit.models import torchscript

WEIGHT = np.arange(8, dtype=np.float32).reshape(4, 2)


class Sized(torch.nn.Module):
    """Weighs rows, and says how many came together."""

    def __init__(self):
        super().__init__()
        self.weigh = torch.nn.Linear(4, 2, bias=False)
        self.weigh.weight.data = torch.from_numpy(WEIGHT.T.copy())

    def forward(self, x):
        return {"y": self.weigh(x), "size": torch.full((x.shape[0],), x.shape[0])}


class Mixed(torch.nn.Module):
    def forward(self, half, *, many, flag):
        return half * 2, many + flag, half.sum(1)


def save_onnx(path, batch="n", *, data="", kind=TensorProto.FLOAT):
    """Writes what `Sized` computes; `data` is the file of its weights, if they have one."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Shape", ["x"], ["count"], start=0, end=1),
        helper.make_node("Expand", ["count", "count"], ["size"]),
    ]
    weight = WEIGHT.astype(helper.tensor_dtype_to_np_dtype(kind))
    graph = helper.make_graph(
        nodes,
        "sized",
        [helper.make_tensor_value_info("x", kind, [batch, 4])],
        [
            helper.make_tensor_value_info("y", kind, [batch, 2]),
            helper.make_tensor_value_info("size", TensorProto.INT64, [batch]),
        ],
        [numpy_helper.from_array(weight, "w")],
    )
    save_graph(path, graph, data)


def save_onnx_types(path, *kinds):
    """Writes a graph that returns its inputs, of these types: name -> ONNX type."""
    names = [f"in_{number}" for number in range(len(kinds))]
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], [f"{name}_out"]) for name in names],
        "types",
        [
            helper.make_tensor_value_info(name, kind, ["n"])
            for name, kind in zip(names, kinds, strict=True)
        ],
        [
            helper.make_tensor_value_info(f"{name}_out", kind, ["n"])
            for name, kind in zip(names, kinds, strict=True)
        ],
    )
    save_graph(path, graph)


def save_graph(path, graph, data=""):
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = {"save_as_external_data": True, "location": data, "size_threshold": 0}
    onnx.save(model, path, **(options if data else {}))


def save_pt2(path, rows=3, *, is_dynamic=True):
    shapes = {"x": {0: torch.export.Dim("batch")}} if is_dynamic else None
    program = torch.export.export(Sized(), (torch.ones(rows, 4),), dynamic_shapes=shapes)
    save_program(program, path)


def save_mixed_pt2(path):
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(
        Mixed(),
        (torch.ones(3, 2, dtype=torch.bfloat16),),
        {"many": torch.ones(3, dtype=torch.int64), "flag": torch.ones(3, dtype=torch.bool)},
        dynamic_shapes={"half": batch, "many": batch, "flag": batch},
    )
    save_program(program, path)


def save_program(program, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, path)


def save_torchscript(path, module):
    with torchscript():
        torch.jit.save(torch.jit.script(module), path)


def save_classifier(folder):
    """Writes a BERT that knows six words, with random weights."""
    import transformers  # noqa: PLC0415 - takes seconds

    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
    (folder / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer = {"tokenizer_class": "BertTokenizer", "model_max_length": 32}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
