"""The model in LitServe."""

from typing import Annotated

import litserve
import work
from fastapi import Body, Response


class Model(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self._run = work.load()

    def decode_request(self, request: Annotated[bytes, Body()]) -> bytes:
        return request

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        return inputs

    def predict(self, x: list[bytes]) -> list[bytes]:
        return self._run(x)

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        return output

    def encode_response(self, output: bytes) -> Response:
        return Response(output, media_type="application/octet-stream")


if __name__ == "__main__":
    model = Model(max_batch_size=work.BATCH_SIZE, batch_timeout=work.DELAY_MS / 1000)
    server = litserve.LitServer(model, accelerator="cpu", workers_per_device=1, timeout=120)
    server.run(host="127.0.0.1", port=work.PORT, num_api_servers=1, generate_client_file=False)
