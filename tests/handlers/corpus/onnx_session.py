"""BaseHandler loads the .onnx file; the handler runs the session."""

import json

import numpy
from ts.torch_handler.base_handler import BaseHandler


class OnnxSession(BaseHandler):
    def preprocess(self, data):
        rows = [
            json.loads(row["body"]) if isinstance(row["body"], bytearray) else row["body"]
            for row in data
        ]
        return numpy.array(rows, dtype=numpy.float32)

    def inference(self, data):
        name = self.model.get_inputs()[0].name
        return self.model.run(None, {name: data})[0]
