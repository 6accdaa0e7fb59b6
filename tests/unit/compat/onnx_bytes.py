"""A tiny ONNX model, written by hand: the package onnx is not needed to make one.

Field numbers are those of onnx.proto; `y = x + x`, float [n, 3].
"""


def doubling_model():
    node = text(1, "x") + text(1, "x") + text(2, "y") + text(4, "Add")
    graph = block(1, node) + text(2, "doubling") + block(11, tensor("x")) + block(12, tensor("y"))
    opset = text(1, "") + number(2, 13)
    return number(1, 8) + block(7, graph) + block(8, opset)


def tensor(name):
    shape = block(1, text(2, "n")) + block(1, number(1, 3))
    return text(1, name) + block(2, block(1, number(1, 1) + block(2, shape)))


def number(field, value):
    return bytes([field << 3]) + varint(value)


def text(field, value):
    return block(field, value.encode())


def block(field, content):
    return bytes([field << 3 | 2]) + varint(len(content)) + content


def varint(value):
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)
