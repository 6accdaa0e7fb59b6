"""Each thread takes rows of its own of a batch; answers are those of the batch as a whole."""

import threading

import pytest
import torch
from ts.torch_handler.acceleration.preparation import DataParallel

THREADS = 2


class Watched:
    """Doubles its rows and notes what each call was given, and where."""

    def __init__(self):
        self.calls = []

    def __call__(self, batch):
        self.calls.append((len(batch), torch.get_num_threads(), threading.current_thread()))
        return batch * 2


def batch(rows):
    return torch.arange(rows * 3.0).reshape(rows, 3)


@pytest.mark.parametrize(
    ("rows", "threads", "parts"),
    [(1, 2, [1]), (3, 2, [3]), (4, 2, [2, 2]), (7, 2, [4, 3]), (8, 1, [8]), (8, 6, [2, 2, 2, 2])],
)
def test_batch_is_divided_among_the_threads_and_put_together_in_order(rows, threads, parts):
    # Given
    model = Watched()

    # When
    answer = DataParallel(model, threads)(batch(rows))

    # Then
    assert torch.equal(answer, batch(rows) * 2)
    assert sorted((count for count, *_ in model.calls), reverse=True) == parts


def test_parts_share_the_threads_and_leave_the_callers_setting_alone():
    # Given
    model, before = Watched(), torch.get_num_threads()

    # When
    DataParallel(model, 4)(batch(5))

    # Then two parts of two threads each, on threads of their own
    assert [threads for _, threads, _ in model.calls] == [2, 2]
    assert threading.current_thread() not in {thread for *_, thread in model.calls}
    assert torch.get_num_threads() == before


def test_parts_are_computed_at_the_same_time():
    # Given: no part ends before both have begun
    both = threading.Barrier(THREADS, timeout=10)

    def model(rows):
        both.wait()
        return rows

    # When, Then
    assert torch.equal(DataParallel(model, THREADS)(batch(4)), batch(4))


def test_mapping_is_put_together_by_its_names():
    # When
    answer = DataParallel(lambda rows: {"out": rows, "aux": rows[:, :1]}, THREADS)(batch(4))

    # Then
    assert torch.equal(answer["out"], batch(4))
    assert torch.equal(answer["aux"], batch(4)[:, :1])


def test_answer_without_rows_is_an_error():
    with pytest.raises(TypeError, match="float has no rows"):
        DataParallel(lambda rows: float(rows.sum()), THREADS)(batch(4))


def test_error_of_a_part_is_the_callers():
    # Given
    def model(rows):
        if rows.max() > 8:
            raise RuntimeError("no such row")
        return rows

    # When, Then
    with pytest.raises(RuntimeError, match="no such row"):
        DataParallel(model, THREADS)(batch(4))


def test_answer_may_be_changed_and_asked_for_gradients_elsewhere():
    # When
    answer = DataParallel(lambda rows: rows, THREADS)(batch(4))

    # Then
    assert not answer.is_inference()
