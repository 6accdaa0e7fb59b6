"""Reads extra files from the current directory and from model_dir, and imports one of them."""

import os

import corpus_helper


class ExtraFiles:
    def initialize(self, context):
        folder = context.system_properties["model_dir"]
        with open("greeting.txt") as file:
            self.greeting = file.read().strip()
        self.names = sorted(name for name in os.listdir(folder) if name.endswith((".txt", ".py")))

    def handle(self, data, context):
        name = corpus_helper.shout(bytes(data[0]["body"]).decode())
        return [{"greeting": f"{self.greeting} {name}", "files": self.names} for _ in data]
