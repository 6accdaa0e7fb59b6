"""Text: a vocabulary among the extra files, an eager model with its class in a file."""

import json
import os
import re

import torch
from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import CLEANUP_REGEX


class WordCounts(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        path = os.path.join(context.system_properties["model_dir"], "vocabulary.json")
        with open(path) as file:
            self.vocabulary = json.load(file)

    def preprocess(self, data):
        counts = torch.zeros(len(data), len(self.vocabulary))
        for index, row in enumerate(data):
            text = row.get("data") or row.get("body")
            if isinstance(text, (bytes, bytearray)):
                text = text.decode("utf-8")
            for word in re.findall(r"\w+", CLEANUP_REGEX.sub("", text).lower()):
                if word in self.vocabulary:
                    counts[index, self.vocabulary[word]] += 1
        return counts

    def postprocess(self, data):
        names = [self.mapping[str(number)] for number in data.argmax(1).tolist()]
        return [
            {"label": name, "scores": row} for name, row in zip(names, data.tolist(), strict=True)
        ]
