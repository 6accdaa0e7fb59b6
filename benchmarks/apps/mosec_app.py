"""The model in mosec."""

import work
from mosec import Server, Worker


class Model(Worker):
    def __init__(self) -> None:
        self._run = work.load()

    def deserialize(self, data: bytes) -> bytes:
        return data

    def serialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: list[bytes]) -> list[bytes]:
        return self._run(data)


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Model, num=1, max_batch_size=work.BATCH_SIZE, max_wait_time=work.DELAY_MS, timeout=120
    )
    server.run()
