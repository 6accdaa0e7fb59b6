"""The built-in image handlers make the archive's model ready; one that resists runs as it is."""

import logging
import threading

import pytest
import torch
from ts.torch_handler.acceleration import LEAST_ROWS, PreparedModel, prepare
from ts.torch_handler.image_classifier import ImageClassifier

from tests.unit.models import MODEL_SOURCE, Convolved, saved, scripted, trained

ROWS, CLASSES = 2 * LEAST_ROWS, 8


class Stubborn(Convolved):
    """Takes images only as they lie in memory by default."""

    def forward(self, images):
        flat = images.view(images.shape[0], -1).view(images.shape[0], 3, -1)
        return self.weigh(flat.mean(dim=2).repeat(1, 6)[:, :16])


class Fickle(Convolved):
    """Never answers the same twice."""

    def forward(self, images):
        return self.weigh(torch.rand(images.shape[0], 16))


class Exact(Convolved):
    """Takes no half precision."""

    def forward(self, images):
        if images.dtype != torch.float32:
            raise RuntimeError("float32 only")
        return self.weigh(self.see(images).mean(dim=(2, 3)))


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


@pytest.mark.parametrize(
    ("kind", "config"), [(Stubborn, {}), (Fickle, {}), (Exact, {"dtype": "bfloat16"})]
)
def test_model_that_resists_runs_as_it_is_and_the_log_says_so(load, caplog, kind, config):
    # When
    with caplog.at_level(logging.WARNING):
        handler = load(scripted(trained(kind)), config)

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


def not_optimized(frozen):
    raise RuntimeError("no oneDNN")


def answering_otherwise(frozen):
    return lambda batch: 2 * frozen(batch)


@pytest.mark.parametrize(
    ("optimize", "log"),
    [
        (not_optimized, "cannot be optimized for this processor"),
        (answering_otherwise, "optimized, the model answers differently"),
    ],
)
def test_model_that_torch_cannot_optimize_is_prepared_without(
    load, monkeypatch, caplog, threads_of_torch, *, optimize, log
):
    # Given
    threads_of_torch(2)
    model = trained(Convolved)
    monkeypatch.setattr(torch.jit, "optimize_for_inference", optimize)

    # When
    handler = load(scripted(model))

    # Then
    assert log in caplog.text
    assert isinstance(handler.model, PreparedModel)
    assert handler.model.is_divided
    with torch.inference_mode():
        assert torch.allclose(handler.inference(rows()), model(rows()), atol=1e-4)


class Neighbourly(Convolved):
    """Compares a row with those beside it."""

    def forward(self, images):
        seen = self.see(images).mean(dim=(2, 3))
        return self.weigh(seen - seen.mean(dim=0))


class Late(Convolved):
    """Compares rows with the one before the last of a batch of more than two."""

    def forward(self, images):
        seen = self.see(images).mean(dim=(2, 3))
        if seen.shape[0] > 2:
            seen = seen - seen[-2:-1]
        return self.weigh(seen)


class WholeOnly(Convolved):
    """Fails for a part of a batch."""

    def forward(self, images):
        seen = self.see(images).mean(dim=(2, 3))
        if 1 < seen.shape[0] < 8:
            raise RuntimeError("too few")
        return self.weigh(seen)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "log"),
    [
        (Neighbourly, "rows depend on their neighbours"),
        (Late, "rows depend on their neighbours"),
        (WholeOnly, "batches cannot be divided"),
    ],
)
def test_batch_stays_whole_where_its_parts_are_answered_otherwise(
    load, threads_of_torch, caplog, *, kind, log, dtype
):
    # Given
    threads_of_torch(2)
    model = trained(kind)

    # When
    handler = load(scripted(model), {"dtype": dtype})

    # Then
    assert not handler.model.is_divided
    assert log in caplog.text
    tolerance = 1e-4 if dtype == "float32" else 0.1
    with torch.inference_mode():
        assert torch.allclose(handler.inference(rows()), model(rows()), atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "is_divided"), [(Convolved, True), (Neighbourly, False)])
def test_batch_is_divided_where_rows_do_not_depend_on_each_other(
    load, threads_of_torch, kind, is_divided, dtype
):
    # Given
    threads_of_torch(2)
    model = trained(kind)
    handler = load(scripted(model), {"dtype": dtype})

    # When, Then: with fewer rows, too
    assert handler.model.is_divided is is_divided
    with torch.inference_mode():
        for count in (1, LEAST_ROWS, ROWS - 1, ROWS):
            given = rows()[:count]
            tolerance = 1e-4 if dtype == "float32" else 0.1
            assert torch.allclose(handler.inference(given), model(given), atol=tolerance)


def test_answer_without_rows_is_an_error(threads_of_torch):
    threads_of_torch(2)
    prepared = PreparedModel(lambda batch: float(batch.sum()), torch.float32, lambda: None)
    prepared.is_divided = True
    with pytest.raises(TypeError, match="float has no rows"):
        prepared(rows())


class Watched:
    """Doubles its rows, and notes what each call was given, and where."""

    def __init__(self, parts=1):
        self.calls = []
        self.meeting = threading.Barrier(parts, timeout=10)

    def __call__(self, batch):
        self.calls.append((len(batch), torch.get_num_threads(), threading.current_thread()))
        self.meeting.wait()
        return {"out": batch * 2, "aux": batch[:, :1]}


@pytest.mark.parametrize(
    ("count", "threads", "parts"),
    [
        (LEAST_ROWS, 2, [LEAST_ROWS]),
        (ROWS, 2, [LEAST_ROWS, LEAST_ROWS]),
        (ROWS + 1, 2, [LEAST_ROWS + 1, LEAST_ROWS]),
        (ROWS, 1, [ROWS]),
        (3 * LEAST_ROWS, 7, [LEAST_ROWS] * 3),
    ],
)
def test_parts_are_computed_at_the_same_time_and_put_together_in_order(
    threads_of_torch, count, threads, parts
):
    # Given: no part ends before all have begun
    threads_of_torch(threads)
    model = Watched(len(parts))
    prepared = PreparedModel(model, torch.float32, lambda: None)
    prepared.is_divided = True
    batch = torch.arange(count * 3.0).reshape(count, 3, 1, 1)

    # When
    answer = prepared(batch)

    # Then they share the threads, and the caller's setting is as before
    assert torch.equal(answer["out"], batch * 2)
    assert torch.equal(answer["aux"], batch[:, :1])
    assert not answer["out"].is_inference()
    assert sorted((size for size, *_ in model.calls), reverse=True) == parts
    assert {share for _, share, _ in model.calls} == {threads // len(parts)}
    is_here = threading.current_thread() in {thread for *_, thread in model.calls}
    assert is_here is (len(parts) == 1)
    assert torch.get_num_threads() == threads
