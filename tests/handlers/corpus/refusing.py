"""Refuses, fails or runs out of memory, as the client asks."""

from ts.utils.util import PredictionException


class Refusing:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        wish = bytes(data[0]["body"]).decode()
        if wish.isdigit():
            raise PredictionException(f"refused with {wish}", int(wish))
        if wish == "refuse":
            raise PredictionException("refused without a code")
        if wish == "fail":
            raise KeyError("secret")
        if wish == "memory":
            raise MemoryError
        if wish == "cuda":
            raise RuntimeError("CUDA error: device-side assert triggered")
        return {"none": None, "text": "text", "short": [], "object": [object()]}.get(wish, [wish])
