"""A class without a base: initialize and handle."""


class Doubler:
    def __init__(self):
        self.factor = 0

    def initialize(self, context):
        self.factor = 2
        self.model_name = context.model_name

    def handle(self, data, context):
        return [{self.model_name: self.factor * float(row["body"])} for row in data]
