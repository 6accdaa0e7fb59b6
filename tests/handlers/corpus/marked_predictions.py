"""A handler whose envelope lies in another file of its archive and marks the answers."""

from corpus_envelopes import MarkedEnvelope


class Lengths:
    def initialize(self, context):
        self.envelope = MarkedEnvelope(self.predict)

    def predict(self, instances, context):
        return [len(instance) for instance in instances]

    def handle(self, data, context):
        return self.envelope.handle(data, context)
