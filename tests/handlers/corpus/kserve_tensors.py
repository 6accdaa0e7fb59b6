"""Tensors in, tensors out, with what the answer says of the model."""

from ts.torch_handler.request_envelope import kservev2


class Sums(kservev2.KServev2Envelope):
    def __init__(self):
        super().__init__(self.predict)

    def initialize(self, context):
        self.scale = 2

    def parse_input(self, data):
        return [given["data"] for given in super().parse_input(data)]

    def predict(self, tensors, context):
        return [[self.scale * sum(row) for row in tensor] for tensor in tensors]

    def format_output(self, data):
        answers = super().format_output(data)
        for answer in answers:
            answer["parameters"] = {"scale": self.scale}
        return answers
