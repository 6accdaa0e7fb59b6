"""BaseHandler over a scripted model; rows are JSON, only preprocess is overridden."""

import json

import torch
from ts.torch_handler.base_handler import BaseHandler


class Features(BaseHandler):
    def preprocess(self, data):
        rows = []
        for row in data:
            body = row.get("data") or row.get("body")
            if isinstance(body, (bytes, bytearray)):
                body = json.loads(body)
            rows.append(body["features"])
        return torch.tensor(rows, dtype=torch.float32, device=self.device)
