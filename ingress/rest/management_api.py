"""Answers the management port's routes.

Source: TorchServe 0.12 management API, `DescribeModelResponse`, `ListModelsResponse`.
"""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from flask import request

from batching.errors import BadRequest, InternalError, NoWorker
from batching.models.entry import ModelEntry, check_names, existing, pick_version
from batching.models.registration import bool_parameter, int_parameter
from batching.models.spec import PARAMETERS, ModelSpec
from batching.models.statuses import QueueStatus, WorkerState, WorkerStatus
from batching.store.jobs.job_records import Job, JobStatus, job_document
from ingress.http1.exchange import HttpAnswer
from ingress.jobs.job_service import NEWEST_US, JobNotFound, NotRetryable
from ingress.models.registrar import Registrar
from ingress.rest.wsgi_bridge import flask_exchange
from ingress.services import Services
from ingress.torchserve.answers import (
    JSON_CONTENT_TYPE,
    how_to_get_a_worker,
    json_answer,
    reply_answer,
    status_answer,
    typed_answer,
    wrong_method,
)
from ingress.torchserve.openapi import model_management_document

log = logging.getLogger(__name__)

_MOST_JOBS, _USUAL_JOBS = 1000, 100  # of a page
_LIMIT = re.compile(r"0*([1-9][0-9]*)")
_CURSOR = re.compile(r"[0-9]{1,20}")
_MOST_MODELS = 100  # of a page


class ManagementView:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._registry = services.registry
        self._registrar = Registrar(services)

    def register(self) -> HttpAnswer:
        self._require_model_api()
        status, text = self._registrar.register(_registration_parameters())
        return status_answer(text, status)

    def scale(self, model_name: str, model_version: str | None = None) -> HttpAnswer:
        status, text = self._registrar.scale(model_name, model_version, request.args)
        return status_answer(text, status)

    def set_default(self, model_name: str, model_version: str) -> HttpAnswer:
        return status_answer(self._registrar.set_default(model_name, model_version))

    def unregister(self, model_name: str, model_version: str | None = None) -> HttpAnswer:
        self._require_model_api()
        return status_answer(self._registrar.unregister(model_name, model_version))

    def describe(self, model_name: str, model_version: str | None = None) -> HttpAnswer:
        check_names(model_name, model_version)
        entry = existing(self._registry.get(model_name), model_name)
        spec = pick_version(entry, model_name, model_version)
        [document] = self._describe([spec], entry)
        if bool_parameter(request.args, "customized", default=False):
            try:
                reply = self._services.on_loop(self._services.predictor.describe(spec))
            except NoWorker as error:
                raise NoWorker(
                    f'Model "{model_name}" has no worker to serve describe request. Please use '
                    "scale workers API to add workers. "
                    f"{how_to_get_a_worker(spec, model_version)}"
                ) from error
            if reply.error_type:
                return reply_answer(reply)
            # As in TorchServe, anything but an object becomes an empty one.
            metadata = None
            with contextlib.suppress(ValueError, RecursionError):
                metadata = json.loads(bytes(reply.body))
            document["customizedMetadata"] = metadata if isinstance(metadata, dict) else {}
        return json_answer([document])

    def describe_all(self, model_name: str) -> HttpAnswer:
        check_names(model_name)
        entry = existing(self._registry.get(model_name), model_name)
        return json_answer(self._describe(entry.versions.values(), entry))

    def list_models(self) -> HttpAnswer:
        entries = self._registry.snapshot().items()
        urls = {name: entry.versions[entry.default_version].model_url for name, entry in entries}
        return json_answer(list_page(urls, request.args))

    def document(self, model_name: str) -> HttpAnswer:
        self._registrar.resolve(model_name, None)
        return json_answer(model_management_document(model_name))

    def kserve_ready(self, model_name: str) -> HttpAnswer:
        spec = self._registrar.resolve(model_name, None)
        is_ready = self._services.health.is_ready(spec)
        return json_answer({"name": model_name, "ready": is_ready})

    def list_nodes(self) -> HttpAnswer:
        nodes = self._registry.nodes()
        if not nodes:
            self._registry.require_writable()  # otherwise no node can report that it runs
        # The keys are those of a worker in describe.
        words = {"node": "node_id", "host": "hostname", "pid": "pid", "startTime": "started_at"}
        return json_answer(
            [{key: getattr(node, name) for key, name in words.items()} for node in nodes]
        )

    def list_jobs(self) -> HttpAnswer:
        # TorchServe has no such list, so a wrong limit need not be ignored.
        limit = _LIMIT.fullmatch(request.args.get("limit") or str(_USUAL_JOBS))
        if limit is None:
            raise BadRequest(
                f"limit must be a whole number, 1 or more; a page has {_USUAL_JOBS} entries "
                f"without it, and {_MOST_JOBS:,} at most."
            )
        count = min(int(limit[1][:9]), _MOST_JOBS)  # Python reads no number of 5,000 digits
        cursor = request.args.get("cursor", "")
        if cursor and not _CURSOR.fullmatch(cursor):
            raise BadRequest("cursor must be what next_cursor of the page before said.")
        jobs, next_us = self._jobs(min(int(cursor or NEWEST_US), NEWEST_US), count)
        document: dict[str, Any] = {"jobs": [self._job(job) for job in jobs]}
        if next_us is not None:
            document["next_cursor"] = str(next_us)
        return json_answer(document)

    def cancel_jobs(self) -> HttpAnswer:
        if not (request.args.get("model") or request.args.get("status")):
            raise BadRequest("Name a model or a status, of which all jobs are to be deleted.")
        return self._each_job(self._services.jobs.cancel)

    def retry_jobs(self) -> HttpAnswer:
        return self._each_job(self._services.jobs.retry)

    def retry_job(self, job_id: str) -> HttpAnswer:
        job = self._services.on_loop(self._services.jobs.retry(job_id))
        return json_answer(self._job(job), 202)

    def renew_key(self) -> HttpAnswer:
        """Gives new keys to clients that have the API key. Source: `TokenAuthorization`."""
        assert self._services.keys is not None
        authorization = request.headers.get("Authorization", "")
        try:
            self._services.keys.renew(request.args.get("type", ""), authorization)
        except (OSError, ValueError) as error:
            log.exception("renewing a key failed")
            # Without the file's path, which is not for clients.
            why = getattr(error, "strerror", None) or error
            raise InternalError(f"The key file cannot be written: {why}.") from error
        # As in TorchServe, only the file has the new key: the client must be able to read it.
        return typed_answer(b"\n", JSON_CONTENT_TYPE)

    def _job(self, job: Job) -> dict[str, Any]:
        return job_document(job, self._services.http_predictions.base_url(flask_exchange()))

    def _each_job(self, act: Callable[[str], Coroutine[Any, Any, object]]) -> HttpAnswer:
        """Calls `act` for each job of the request's model and status; answers how often."""
        cursor: int | None = NEWEST_US
        done = 0
        while cursor is not None:
            jobs, cursor = self._jobs(cursor, _USUAL_JOBS)
            for job in jobs:
                with contextlib.suppress(NotRetryable, JobNotFound):
                    self._services.on_loop(act(job.job_id))
                    done += 1
        return json_answer({"jobs": done})

    def _jobs(self, cursor: int, count: int) -> tuple[list[Job], int | None]:
        model, status = request.args.get("model", ""), request.args.get("status", "")
        if status and status not in list(JobStatus):
            raise BadRequest(f"status must be one of {', '.join(JobStatus)}.")
        wanted = JobStatus(status) if status else None
        return self._services.on_loop(self._services.jobs.page(model, wanted, cursor, count))

    def _require_model_api(self) -> None:
        # Source: TorchServe 0.12 docs/model_api_control.md.
        if not self._services.settings.enable_model_api:
            raise wrong_method()

    def _describe(self, specs: Iterable[ModelSpec], entry: ModelEntry) -> list[dict[str, Any]]:
        hosts = {node.node_id: node.hostname for node in self._registry.nodes()}
        return [
            describe_version(
                spec,
                self._registry.workers(spec.key),
                self._registry.queue(spec),
                is_default=entry.default_version == spec.model_version,
                hosts=hosts,
            )
            for spec in specs
        ]


def _registration_parameters() -> Mapping[str, Any]:
    # With a JSON body the query string does not count at all.
    if request.mimetype != "application/json":
        return request.args
    try:
        document = json.loads(request.get_data())
    except (ValueError, RecursionError) as error:
        # Without the line number, which looks like a traceback's.
        why = f"{error.msg} at {error.pos}" if isinstance(error, json.JSONDecodeError) else error
        raise BadRequest(f"The request body is not JSON: {why}.") from error
    if not isinstance(document, dict):
        raise BadRequest("The request body is not a JSON object.")
    return {name: value for name, value in document.items() if value is not None}


def describe_version(
    spec: ModelSpec,
    workers: Sequence[WorkerStatus],
    queue: QueueStatus,
    *,
    is_default: bool,
    hosts: Mapping[str, str],
) -> dict[str, Any]:
    """Describes one version: keys in TorchServe's order, then our own.

    `hosts`: node id -> host name, where it is known.
    """
    document: dict[str, Any] = {
        "modelName": spec.model_name,
        "modelVersion": spec.model_version,
        "modelUrl": spec.model_url,
        "runtime": spec.runtime,
    }
    for parameter in PARAMETERS:
        shown_with = parameter.shown_with
        is_shown = not shown_with or getattr(spec, shown_with) != getattr(ModelSpec, shown_with)
        if parameter.is_described and is_shown:
            if parameter.word == "deviceType":  # before it, TorchServe has features left out here
                document |= {"parallelType": "", "parallelLevel": 0}
            document[parameter.word] = getattr(spec, parameter.name)
    has_gpu = any(worker.device.startswith("cuda") for worker in workers)
    document["deviceType"] = spec.device_type or ("gpu" if has_gpu else "cpu")
    document |= {
        "continuousBatching": False,
        "useJobTicket": spec.config.get("useJobTicket") is True,
        "useVenv": spec.config.get("useVenv") is True,
        "stateful": False,
        "sequenceMaxIdleMSec": 0,
        "sequenceTimeoutMSec": 0,
        "maxNumSequence": 0,
        "maxSequenceJobQueueSize": 0,
        "loadedAtStartup": spec.is_loaded_at_startup,
        "workers": [_describe_worker(worker, hosts.get(worker.node_id, "")) for worker in workers],
        "jobQueueStatus": {
            "remainingCapacity": max(0, queue.capacity - queue.waiting),
            "pendingRequests": queue.waiting,
        },
        "isDefault": is_default,
    }
    if spec.load_error:
        document["error"] = spec.load_error
    return document


def list_page(urls: Mapping[str, str], parameters: Mapping[str, str]) -> dict[str, Any]:
    """Returns one page of the models, sorted by name, with the default version's archive.

    A full page has a token for the next page.
    """
    names = sorted(urls)
    limit = int_parameter(parameters, "limit", _MOST_MODELS)
    if not 0 <= limit <= _MOST_MODELS:
        limit = _MOST_MODELS
    start = max(0, int_parameter(parameters, "next_page_token", 0))
    end = start + limit
    page: dict[str, Any] = {} if end > len(names) else {"nextPageToken": str(end)}
    page["models"] = [{"modelName": name, "modelUrl": urls[name]} for name in names[start:end]]
    return page


def _describe_worker(worker: WorkerStatus, host: str) -> dict[str, Any]:
    kind, _, index = worker.device.partition(":")
    is_gpu = kind == "cuda"
    document: dict[str, Any] = {
        "id": worker.worker_id,
        "startTime": worker.started_at,
        "status": "READY" if worker.state is WorkerState.READY else "UNLOADING",
        "memoryUsage": worker.memory_bytes,
        "pid": worker.pid,
        "gpu": is_gpu,
        "gpuUsage": f"gpuId::{index or 0}" if is_gpu else "N/A",
        # TorchServe has none, so it comes last.
        "node": worker.node_id,
    }
    if host:
        document["host"] = host
    if worker.state is not WorkerState.READY:
        # TorchServe calls all of these UNLOADING.
        document["state"] = worker.state.value
    if worker.error:
        document["error"] = worker.error
    return document
