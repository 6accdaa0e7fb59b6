"""A handler that is its own envelope."""

from ts.torch_handler.request_envelope.kserve import KServeEnvelope


class Lengths(KServeEnvelope):
    def __init__(self):
        super().__init__(self.predict)

    def initialize(self, context):
        self.unit = "letters"

    def predict(self, instances, context):
        return [len(instance) for instance in instances]

    def format_output(self, data):
        return [{**answer, "unit": self.unit} for answer in super().format_output(data)]
