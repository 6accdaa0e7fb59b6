"""The built-in image handlers make the archive's model ready; one that resists runs as it is."""

import json
import logging
import threading
import time

import pytest
import torch
from ts.torch_handler.acceleration.preparation import (
    DataParallel,
    PreparedModel,
    divided,
    measured_now,
    prepare,
)
from ts.torch_handler.image_classifier import ImageClassifier
from workers.handling.findings import FILE

from batching.settings.settings import Settings
from tests.unit.models import MODEL_SOURCE, NAMES, Convolved, manifest, saved, scripted, trained

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


class Wide(Convolved):
    """Sees with a stride of its own."""

    def __init__(self):
        super().__init__()
        self.see = torch.nn.Conv2d(3, 16, 5, stride=4)


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
        prepared = prepare(Watching(), Watching, rows()[:1], torch.float32, 1, recall=measured_now)
        assert prepared is not None
        prepared(rows())
        after = torch.get_float32_matmul_precision()
    finally:
        torch.set_float32_matmul_precision(before)

    # Then two calls were compared, and others run as before
    assert seen == [(False, False)] * 2 + [(True, True)]
    assert after == "high"


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


class Costly:
    """A model that takes its time for each call, or for each row."""

    def __init__(self, lock, *, call_s=0.0, row_s=0.0):
        self._lock = lock
        self._call_s, self._row_s = call_s, row_s

    def __call__(self, batch):
        with self._lock:
            time.sleep(self._call_s + len(batch) * self._row_s)
        return batch.mean(dim=(2, 3))


def whole_only(batch):
    if len(batch) < ROWS:
        raise RuntimeError("too few")
    return batch.mean(dim=(2, 3))


@pytest.mark.parametrize(
    ("model", "is_divided", "log"),
    [
        # Parts that wait for each other take twice as long, parts that need not take half.
        (Costly(threading.Lock(), call_s=0.3), False, ""),
        (Costly(threading.Semaphore(2), row_s=0.05), True, ""),
        (whole_only, False, "batches cannot be divided"),
        (lambda batch: batch.mean(dim=(2, 3)) - batch.mean(), False, "rows depend on their"),
    ],
    ids=["slower", "faster", "fails over a part", "looks at other rows"],
)
def test_batches_are_divided_where_that_is_right_and_not_slower(
    model, is_divided, log, caplog, two_threads
):
    # When
    compute = divided(model, rows()[:1], ROWS, 1e-3, lambda measure: measure())

    # Then
    assert isinstance(compute, DataParallel) is is_divided
    assert is_divided or compute is model
    assert log in caplog.text


@pytest.fixture
def load_in_worker(load_handler, tmp_path, two_threads):
    """Loads a model as a worker does; returns it as it computes."""

    def run(kind, batch_size=ROWS):
        model = load_handler(
            {"model.pt": scripted(trained(kind)), "index_to_name.json": NAMES},
            settings=Settings(work_dir=tmp_path),
            handler="image_classifier",
            batch_size=batch_size,
            archive_sha256="a" * 64,
            manifest=manifest(serializedFile="model.pt"),
        )
        return model.entry.__self__.model._compute

    return run


@pytest.mark.parametrize("answer", [True, False])
def test_second_load_times_nothing_and_does_what_the_first_one_found(
    load_in_worker, tmp_path, caplog, answer
):
    # Given a first load, and what it would have found on another machine
    load_in_worker(Convolved)
    [(question, _)] = json.loads((tmp_path / FILE).read_text()).items()
    (tmp_path / FILE).write_text(json.dumps({question: answer}))
    caplog.set_level(logging.INFO)

    # When
    compute = load_in_worker(Convolved)

    # Then
    assert isinstance(compute, DataParallel) is answer
    assert "timing" not in caplog.text
    assert "measured at an earlier load" in caplog.text


@pytest.mark.parametrize(("kind", "batch_size"), [(Convolved, 2 * ROWS), (Wide, ROWS)])
def test_other_batch_size_or_model_is_timed_and_the_log_says_so(
    load_in_worker, caplog, kind, batch_size
):
    # Given
    load_in_worker(Convolved)
    caplog.set_level(logging.INFO)

    # When
    load_in_worker(kind, batch_size)

    # Then
    assert f"timing 4 batches of {batch_size}, whole and in parts" in caplog.text
    assert "timed whole_s=" in caplog.text


class Watched:
    """Doubles its rows and notes what each call was given, and where."""

    def __init__(self):
        self.calls = []

    def __call__(self, batch):
        self.calls.append((len(batch), torch.get_num_threads(), threading.current_thread()))
        return batch * 2


def numbers(count):
    return torch.arange(count * 3.0).reshape(count, 3)


@pytest.mark.parametrize(
    ("count", "threads", "parts"),
    [(1, 2, [1]), (3, 2, [3]), (4, 2, [2, 2]), (7, 2, [4, 3]), (8, 1, [8]), (8, 6, [2, 2, 2, 2])],
)
def test_batch_is_divided_among_the_threads_and_put_together_in_order(count, threads, parts):
    # Given
    model = Watched()

    # When
    answer = DataParallel(model, threads)(numbers(count))

    # Then
    assert torch.equal(answer, numbers(count) * 2)
    assert not answer.is_inference()
    assert sorted((size for size, *_ in model.calls), reverse=True) == parts


def test_parts_share_the_threads_and_leave_the_callers_setting_alone():
    # Given
    model, before = Watched(), torch.get_num_threads()

    # When
    DataParallel(model, 4)(numbers(5))

    # Then two parts of two threads each, on threads of their own
    assert [threads for _, threads, _ in model.calls] == [2, 2]
    assert threading.current_thread() not in {thread for *_, thread in model.calls}
    assert torch.get_num_threads() == before


def test_parts_are_computed_at_the_same_time_and_a_mapping_is_put_together_by_its_names():
    # Given: no part ends before both have begun
    both = threading.Barrier(2, timeout=10)

    def model(batch):
        both.wait()
        return {"out": batch, "aux": batch[:, :1]}

    # When
    answer = DataParallel(model, 2)(numbers(4))

    # Then
    assert torch.equal(answer["out"], numbers(4))
    assert torch.equal(answer["aux"], numbers(4)[:, :1])


def test_answer_without_rows_is_an_error():
    with pytest.raises(TypeError, match="float has no rows"):
        DataParallel(lambda batch: float(batch.sum()), 2)(numbers(4))
