"""Profiled steps, and a class that is imported by its name."""

from ts.handler_utils.timer import timed
from ts.handler_utils.utils import import_class


class TimedSteps:
    def initialize(self, context):
        self.context = context
        self.ordered = import_class(class_name="OrderedDict", module_prefix="collections")

    @timed
    def preprocess(self, data):
        return [bytes(row["body"]).decode() for row in data]

    def handle(self, data, context):
        self.context = context
        return [self.ordered(letter=text) for text in self.preprocess(data)]
