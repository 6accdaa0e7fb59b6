"""Needs more memory than there is."""


class TooLarge:
    def initialize(self, context):
        raise MemoryError

    def handle(self, data, context):
        return data
