"""The batch is split; each part goes through the steps in threads."""

import torch
from ts.handler_utils.micro_batching import MicroBatching
from ts.torch_handler.base_handler import BaseHandler


class MicroBatches(BaseHandler):
    def __init__(self):
        super().__init__()
        self.handle = MicroBatching(self)

    def initialize(self, context):
        super().initialize(context)
        config = context.model_yaml_config["micro_batching"]
        self.handle.parallelism = config["parallelism"]
        self.handle.micro_batch_size = config["micro_batch_size"]

    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data], dtype=torch.float32)

    def postprocess(self, data):
        assert self.handle.get_micro_batch_idx() in (0, 1)
        return data.tolist()
