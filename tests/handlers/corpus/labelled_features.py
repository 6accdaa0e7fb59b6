"""Only postprocess is overridden as well: labels from index_to_name.json, best first."""

import torch
from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import map_class_to_label


class Labelled(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data], dtype=torch.float32)

    def postprocess(self, data):
        probabilities = torch.softmax(data, dim=1)
        values, classes = probabilities.topk(2, dim=1)
        return map_class_to_label(values.tolist(), self.mapping, classes.tolist())
