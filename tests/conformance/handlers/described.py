"""A handler on BaseHandler: describes itself and explains."""

from ts.torch_handler.base_handler import BaseHandler


class Described(BaseHandler):
    def initialize(self, context):
        self.context = context
        self.manifest = context.manifest
        self.initialized = True

    def preprocess(self, data):
        return [bytes(row.get("data") or row.get("body")).decode() for row in data]

    def inference(self, data, *_args, **_kwargs):
        return [text.upper() for text in data]

    def postprocess(self, data):
        return list(data)

    def get_insights(self, tensor_data, raw_data, target=0):
        return [{"tensor": tensor_data, "target": int(target)} for _ in tensor_data]

    def describe_handle(self):
        return {"inputs": ["text"], "nested": {"one": 1}}
