"""An envelope in front of a function: it makes texts of the bodies."""

from ts.torch_handler.request_envelope.body import BodyEnvelope


class TextBodies(BodyEnvelope):
    def parse_input(self, data):
        return [bytes(content).decode() for content in super().parse_input(data)]

    def format_output(self, data):
        return [f"{text}!" for text in super().format_output(data)]


def shout(texts, context):
    return [text.upper() for text in texts]


_envelope = TextBodies(shout)


def handle(data, context):
    if data is None:
        return None
    return _envelope.handle(data, context)
