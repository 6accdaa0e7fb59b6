"""A BaseHandler that calls neither its __init__ nor its initialize."""

import os

import torch
from ts.torch_handler.base_handler import BaseHandler


class OwnInitialize(BaseHandler):
    def __init__(self):
        self.initialized = False

    def initialize(self, context):
        self.manifest = context.manifest
        folder = context.system_properties["model_dir"]
        path = os.path.join(folder, self.manifest["model"]["serializedFile"])
        self.device = torch.device("cpu")
        self.model = torch.jit.load(path, map_location=self.device).eval()
        self.initialized = True

    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data], dtype=torch.float32)

    def postprocess(self, data):
        return data.tolist()
