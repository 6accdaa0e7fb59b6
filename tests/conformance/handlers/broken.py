"""Cannot be loaded."""


class Broken:
    def initialize(self, context):
        raise ValueError("a secret of the handler")

    def handle(self, data, context):
        return data
