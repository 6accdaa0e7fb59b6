"""Serves a pipeline of the library transformers: a local folder, a model of the hub, or a task."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from workers.python_models.decoding import FileModel, decoder_of

# How the name of an architecture ends -> the task.
_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForImageClassification": "image-classification",
    "ForObjectDetection": "object-detection",
}
_OF_IMAGES = frozenset({"image-classification", "object-detection", "image-feature-extraction"})
# Task of text -> options of a call. On a GPU a text longer than the network's positions would end
# the worker.
_OPTIONS_OF_TEXT: dict[str, dict[str, Any]] = {
    "text-classification": {"truncation": True},
    "token-classification": {},
    "fill-mask": {"tokenizer_kwargs": {"truncation": True}},
    "text-generation": {},
    "feature-extraction": {"truncation": True},
}


class Pipeline(FileModel):
    _pipeline: Any

    def __init__(self, name: str) -> None:
        self._name = name

    def load(self, device: str) -> None:
        """Makes the pipeline; code that comes with a model is not run.

        Raises:
            RuntimeError: transformers is not installed.
            ValueError: the task has other rows than text or images, or cannot be told.
        """
        try:
            transformers = import_module("transformers")
        except ImportError as error:
            raise RuntimeError(
                "transformers is needed for hf: models; install it with pip install transformers"
            ) from error
        is_task = self._name in import_module("transformers.pipelines").get_supported_tasks()
        task = self._name if is_task else _task_of(Path(self._name))
        model = None if is_task else self._name
        made = transformers.pipeline(task, model, device=device, trust_remote_code=False)
        if made.task not in _OPTIONS_OF_TEXT.keys() | _OF_IMAGES:
            raise ValueError(
                f"The task {made.task} takes neither text nor one image: write a model in Python "
                "around the pipeline"
            )
        tokenizer = getattr(made, "tokenizer", None)
        if tokenizer is not None and tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token  # a batch needs one
        is_of_images = made.task in _OF_IMAGES
        self.decoder = decoder_of(import_module("PIL.Image").Image if is_of_images else str)
        self.interface = {"summary": f"{made.task} by transformers"}
        self._pipeline = made

    def predict(self, batch: list[Any]) -> list[Any]:
        # Some pipelines answer a list of one row without the list, but never a generator.
        options = _OPTIONS_OF_TEXT.get(self._pipeline.task, {})
        return list(self._pipeline((row for row in batch), batch_size=len(batch), **options))


def _task_of(folder: Path) -> str | None:
    """Returns the task of a model in a local folder; None, so that the hub says it, elsewhere."""
    if not folder.is_dir():
        return None
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architectures = [str(name) for name in config.get("architectures") or []]
    for name in architectures:
        for suffix, task in _TASKS.items():
            if name.endswith(suffix):
                return task
    raise ValueError(
        f"No task is known for {', '.join(architectures) or 'no architecture'} (config.json of "
        f"{folder}): write a model in Python around the pipeline"
    )
