"""An ImageClassifier that does not call its initialize."""

import torch
from ts.torch_handler.image_classifier import ImageClassifier
from ts.utils.util import load_label_mapping


class OwnVision(ImageClassifier):
    topk = 2

    def initialize(self, context):
        self.device = torch.device("cpu")
        self.model = torch.jit.load("w.pt", map_location="cpu").eval()
        self.mapping = load_label_mapping("index_to_name.json")
        self.initialized = True
