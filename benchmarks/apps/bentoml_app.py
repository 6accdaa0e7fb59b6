"""The model in BentoML, whose batches are made of lists in JSON; images come in base64."""

import base64
import os

import bentoml
import work

IS_TEXT = not os.environ.get("BENCH_WEIGHTS")


@bentoml.service(workers=1, traffic={"timeout": 120})
class Model:
    def __init__(self) -> None:
        self._run = work.load()

    # It has no delay to set: it learns how long waiting pays.
    @bentoml.api(batchable=True, max_batch_size=work.BATCH_SIZE)
    def predict(self, bodies: list[str]) -> list[str]:
        read = str.encode if IS_TEXT else base64.b64decode
        return [answer.decode() for answer in self._run([read(body) for body in bodies])]
