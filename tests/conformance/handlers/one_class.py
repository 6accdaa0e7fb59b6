"""A class without any base of TorchServe's; describes itself with something that is no object."""


class OneClass:
    def __init__(self):
        self.is_initialized = False

    def initialize(self, context):
        self.is_initialized = context.model_name == "one-class"

    def handle(self, data, context):
        if context.get_request_header(0, "describe") == "True":
            return ["no object"]
        return [{"initialized": self.is_initialized} for _ in data]
