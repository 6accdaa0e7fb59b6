"""The model in Ray Serve."""

import os
import threading

import ray
import work
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

# A replica is the child of a daemon, which does not pass on what it was given.
INHERITED = ("PYTHONPATH", "OMP_NUM_THREADS", "BENCH_WEIGHTS", "BENCH_BATCH_SIZE", "BENCH_DELAY_MS")


@serve.deployment(num_replicas=1, max_ongoing_requests=1000)
class Model:
    def __init__(self) -> None:
        self._run = work.load()

    @serve.batch(max_batch_size=work.BATCH_SIZE, batch_wait_timeout_s=work.DELAY_MS / 1000)
    async def _predict(self, bodies: list[bytes]) -> list[bytes]:
        return self._run(bodies)

    async def __call__(self, request: Request) -> Response:
        return Response(await self._predict(await request.body()))


if __name__ == "__main__":
    ray.init(
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=os.environ["BENCH_FOLDER"],
        runtime_env={"env_vars": {name: os.environ[name] for name in INHERITED}},
    )
    serve.start(http_options={"host": "127.0.0.1", "port": work.PORT})
    serve.run(Model.bind(), name="model", route_prefix="/")
    threading.Event().wait()
