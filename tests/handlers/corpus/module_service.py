"""The oldest style: a service object in the module, initialised by the first call."""


class Service:
    def __init__(self):
        self.initialized = False
        self.calls = 0

    def initialize(self, context):
        self.batch_size = context.system_properties["batch_size"]
        self.initialized = True

    def preprocess(self, data):
        return [bytes(row.get("data") or row.get("body")).decode() for row in data]

    def inference(self, texts):
        return [text[::-1] for text in texts]

    def postprocess(self, texts):
        return [f"{text} ({self.batch_size})" for text in texts]


_service = Service()


def handle(data, context):
    if not _service.initialized:
        _service.initialize(context)
    if data is None:
        return None
    return _service.postprocess(_service.inference(_service.preprocess(data)))
