"""Asks a quick model, and a careful one about what the quick one is not sure of."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx


class Cascade:
    """Answers as the model that was asked last; header `x-model` names it."""

    def initialize(self, context: Any) -> None:
        config = context.model_yaml_config["handler"]
        self.models = config["models"]
        self.sure_from = config["sure_from"]
        self.client = httpx.Client(base_url=config["inference_url"], timeout=config["timeout_s"])
        # The requests of a batch are asked side by side, so they are a batch for the others, too.
        self.threads = ThreadPoolExecutor(context.system_properties["batch_size"])

    def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[Any]:
        responses = list(self.threads.map(self.ask, data))
        for index, response in enumerate(responses):
            context.set_response_status(response.status_code, idx=index)
            context.set_response_header(index, "x-model", response.url.path.rpartition("/")[2])
        return [response.json() for response in responses]

    def ask(self, row: Mapping[str, Any]) -> httpx.Response:
        """Returns the first answer that is sure, else the last one; an error at once."""
        body = bytes(row.get("data") or row.get("body") or b"")
        for name in self.models:
            response = self.client.post(f"/predictions/{name}", content=body)
            if response.is_error or response.json()["probability"] >= self.sure_from:
                break
        return response
