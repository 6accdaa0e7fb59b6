"""The built-in image handlers make the archive's model ready; one that resists runs as it is."""

import logging
import os
import platform
import subprocess
import sys
import threading
import time

import pytest
import torch
from ts.torch_handler.acceleration import preparation
from ts.torch_handler.acceleration.preparation import (
    DataParallel,
    PreparedModel,
    computed,
    divided,
    prepare,
    warm_up_sizes,
)
from ts.torch_handler.image_classifier import ImageClassifier

from tests.unit.models import MODEL_SOURCE, Convolved, saved, scripted, trained

ROWS, CLASSES = 4, 8


class Stubborn(Convolved):
    """Takes images only as they lie in memory by default."""

    def forward(self, images):
        flat = images.view(images.shape[0], -1).view(images.shape[0], 3, -1)
        return self.weigh(flat.mean(dim=2).repeat(1, 6)[:, :16])


class Fickle(Convolved):
    """Never answers the same twice."""

    def forward(self, images):
        return self.weigh(torch.rand(images.shape[0], 16))


class Sociable(Convolved):
    """Looks at a row beside its neighbours."""

    def forward(self, images):
        seen = torch.relu(self.see(images)).mean(dim=(2, 3))
        return self.weigh(seen - seen.mean(dim=0))


class Own(ImageClassifier):
    """A handler that came with an archive."""


def rows():
    return torch.randn(ROWS, 3, 224, 224, generator=torch.Generator().manual_seed(5))


def test_prepared_model_is_compared_with_all_digits_and_runs_as_torch_is_set():
    # Given
    seen, before = [], torch.get_float32_matmul_precision()

    class Watching(torch.nn.Module):
        def forward(self, batch):
            matmul = torch.backends.cuda.matmul
            has_new_name = hasattr(matmul, "fp32_precision")  # since torch 2.9
            is_tf32 = matmul.fp32_precision != "ieee" if has_new_name else matmul.allow_tf32
            seen.append((torch.backends.cudnn.allow_tf32, is_tf32))
            return batch

    torch.set_float32_matmul_precision("high")

    # When
    try:
        prepared = prepare(Watching(), Watching, rows()[:1], torch.float32, 1)
        assert prepared is not None
        prepared(rows())
        after = torch.get_float32_matmul_precision()
    finally:
        torch.set_float32_matmul_precision(before)

    # Then two calls were compared, and others run as before
    assert seen == [(False, False)] * 2 + [(True, True)]
    assert after == "high"


def test_model_is_loaded_once_and_asked_twice_to_be_prepared():
    # Given
    asked = []

    class Counting(Convolved):
        def forward(self, images):
            asked.append(len(images))
            return super().forward(images)

    def reload():
        raise AssertionError("loaded again")

    # When
    model = trained(Counting)
    asked.clear()
    prepared = prepare(model, reload, rows()[:1], torch.float32, ROWS)

    # Then
    assert prepared is not None
    assert asked == [1, 1]


def test_gpu_is_warmed_up_with_a_full_batch_and_each_power_of_two():
    assert warm_up_sizes(12) == [12, 1, 2, 4, 8]
    assert warm_up_sizes(1) == [1]


def test_batches_are_brought_into_the_layout_and_the_precision_of_the_model():
    # Given
    seen = []

    # When
    answer = computed(lambda batch: seen.append(batch) or batch, torch.bfloat16, rows())

    # Then
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert seen[0].dtype == torch.bfloat16
    assert answer.dtype == torch.float32


def test_prepared_model_computes_in_the_precision_that_the_archive_asks_for(load):
    # Given
    model = trained(Convolved)

    # When
    answer = load(scripted(model), {"dtype": "bfloat16"}).inference(rows())

    # Then it is near, of the same best classes, and not equal
    with torch.inference_mode():
        expected = model(rows())
    assert answer.dtype == torch.float32
    assert torch.equal(answer.argmax(1), expected.argmax(1))
    assert torch.allclose(answer, expected, atol=0.05)
    assert not torch.allclose(answer, expected, atol=1e-6)


@pytest.mark.parametrize(("times", "is_told"), [(1.3, True), (0.6, False)])
def test_log_says_when_half_precision_is_slower(load, caplog, monkeypatch, times, is_told):
    # Given
    monkeypatch.setattr(preparation, "times_of_float32", lambda _: times)
    # When
    with caplog.at_level(logging.WARNING):
        load(scripted(trained(Convolved)), {"dtype": "bfloat16"})
    # Then
    line = "this processor takes 1.3 times as long in bfloat16 as in float32"
    assert (line in caplog.text) == is_told


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN's name of a processor of x86")
def test_half_precision_is_measured():
    # Given a processor without instructions for it
    code = "from ts.torch_handler.acceleration import preparation; import torch;"
    code += "print(preparation.times_of_float32(torch.bfloat16))"
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    # When
    words = [sys.executable, "-c", code]
    times = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True).stdout
    # Then
    assert float(times) > 1.5


def test_preparation_names_the_precisions_there_are(load):
    with pytest.raises(ValueError, match="one of float32, bfloat16, float16"):
        load(scripted(trained(Convolved)), {"dtype": "int3"})


def test_prepared_model_gives_the_gradients_that_explanations_ask_for(load):
    # Given
    model = trained(Convolved)
    handler = load(scripted(model))
    given, same = rows().requires_grad_(), rows().requires_grad_()

    # When
    handler.model(given).sum().backward()

    # Then
    model(same).sum().backward()
    assert torch.allclose(given.grad, same.grad, atol=1e-6)


@pytest.mark.parametrize("kind", [Stubborn, Fickle])
def test_model_that_resists_runs_as_it_is_and_the_log_says_so(load, caplog, kind):
    # When
    with caplog.at_level(logging.WARNING):
        handler = load(scripted(trained(kind)))

    # Then
    assert not isinstance(handler.model, PreparedModel)
    assert handler.inference(rows()).shape == (ROWS, CLASSES)
    assert "runs as it is" in caplog.text


def test_model_with_source_is_prepared_too(load, tmp_path):
    # Given
    torch.manual_seed(1)
    weights = torch.nn.Linear(3, CLASSES)
    state = {f"weigh.{name}": value for name, value in weights.state_dict().items()}
    (tmp_path / "pooled_source.py").write_text(MODEL_SOURCE.format(classes=CLASSES))

    # When
    handler = load(saved(state), modelFile="pooled_source.py")

    # Then
    assert isinstance(handler.model, PreparedModel)
    with torch.inference_mode():
        expected = weights(rows().mean(dim=(2, 3)))
    assert torch.allclose(handler.inference(rows()), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "config", "is_prepared"),
    [
        (ImageClassifier, {}, True),
        (ImageClassifier, {"prepare": False}, False),
        (Own, {}, False),
        (Own, {"prepare": True}, True),
        (Own, {"dtype": "bfloat16"}, True),
    ],
)
def test_handlers_of_ones_own_are_prepared_when_they_ask_for_it(load, kind, config, is_prepared):
    handler = load(scripted(trained(Convolved)), config, kind=kind)
    assert isinstance(handler.model, PreparedModel) is is_prepared


def test_rows_of_a_batch_are_computed_as_in_one(load, two_threads):
    # Given rows that differ, enough to be divided, and fewer
    model = trained(Convolved)
    handler = load(scripted(model))

    # When, Then
    assert isinstance(handler.model, PreparedModel)
    with torch.inference_mode():
        for count in range(1, ROWS + 1):
            given = rows()[:count]
            assert torch.allclose(handler.inference(given), model(given), atol=1e-4)


def test_model_whose_rows_depend_on_each_other_is_not_divided(load, caplog, two_threads):
    # Given
    model = trained(Sociable)

    # When
    with caplog.at_level(logging.WARNING):
        handler = load(scripted(model))

    # Then
    assert "batches are not divided" in caplog.text
    with torch.inference_mode():
        assert torch.allclose(handler.inference(rows()), model(rows()), atol=1e-4)


class Costly:
    """A model that takes its time for each call, or for each row."""

    def __init__(self, lock, *, call_s=0.0, row_s=0.0):
        self._lock = lock
        self._call_s, self._row_s = call_s, row_s

    def __call__(self, batch):
        with self._lock:
            time.sleep(self._call_s + len(batch) * self._row_s)
        return batch.mean(dim=(2, 3))


@pytest.mark.parametrize(
    ("model", "is_divided"),
    [
        # Parts that wait for each other take twice as long, parts that need not take half.
        (Costly(threading.Lock(), call_s=0.05), False),
        (Costly(threading.Semaphore(2), row_s=0.01), True),
    ],
    ids=["slower", "faster"],
)
def test_batches_are_divided_unless_that_is_slower(model, is_divided, two_threads):
    # When
    found = divided(model, rows()[:1], ROWS, 1e-3)

    # Then
    assert isinstance(found, DataParallel) is is_divided


def test_model_that_fails_over_a_part_is_not_divided(caplog, two_threads):
    # Given
    def whole_only(batch):
        if len(batch) < ROWS:
            raise RuntimeError("too few")
        return batch.mean(dim=(2, 3))

    # When
    found = divided(whole_only, rows()[:1], ROWS, 1e-3)

    # Then
    assert found is whole_only
    assert "cannot be divided" in caplog.text
