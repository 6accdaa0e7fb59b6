"""Echo and label in mosec, each with a worker of its own.

python mosec_app.py --address 127.0.0.1 --port 8000
"""

import os

from mosec import Runtime, Server, Worker

BATCH_SIZE = int(os.environ["BENCH_BATCH_SIZE"])
DELAY_MS = int(os.environ["BENCH_DELAY_MS"])
TIMEOUT_S = 120


class Echo(Worker):
    def deserialize(self, data: bytes) -> bytes:
        return data

    def serialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: list[bytes]) -> list[bytes]:
        return data


class Label(Echo):
    def forward(self, data: list[bytes]) -> list[bytes]:
        return [b"%d %d" % (len(body), body[-1]) for body in data]


if __name__ == "__main__":
    server = Server()
    routes = {"/echo": Echo, "/label": Label}
    limits = (1, BATCH_SIZE, DELAY_MS, TIMEOUT_S)
    server.register_runtime({path: [Runtime(one, *limits)] for path, one in routes.items()})
    server.run()
