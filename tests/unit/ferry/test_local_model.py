"""`ferry.local`: rows are decoded, batched and encoded as a server would."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

import ferry


class Sizes(ferry.Model):
    batch_size = 2
    warm_up = ("x",)

    def load(self, device):
        self.device, self.batches = device, []

    def predict(self, rows: list[bytes]) -> list[dict]:
        self.batches.append(len(rows))
        return [{"bytes": len(row), "batches": self.batches, "on": self.device} for row in rows]


@dataclasses.dataclass
class Labelled:
    picture: Image.Image
    label: str


def test_rows_go_in_batches_after_the_warm_up():
    # When
    answers = ferry.local(Sizes, device="cuda:1")([b"1", b"22", b"333"])
    # Then
    assert [answer["bytes"] for answer in answers] == [1, 2, 3]
    assert answers[2] == {"bytes": 3, "batches": [2, 1, 2, 1], "on": "cuda:1"}


def test_function_is_run_with_its_decorators_settings():
    # Given
    @ferry.model(batch_size=3)
    def double(batch):
        return [[row, len(batch)] for row in batch]

    # When
    answers = ferry.local(double)([1, {"a": None}, [2], 4])
    # Then
    assert answers == [[1, 3], [{"a": None}, 3], [[2], 3], [4, 1]]


def test_row_that_cannot_be_decoded_is_refused_alone():
    # Given
    def predict(numbers: list[int]) -> list:
        return [ferry.BadInput("too low") if number < 0 else number for number in numbers]

    # When
    answers = ferry.local(predict)([1, "no", -2, 3])
    # Then
    assert answers[::3] == [1, 3]
    assert all(isinstance(answer, ferry.BadInput) for answer in answers[1:3])
    assert str(answers[2]) == "too low"


def test_pictures_arrays_and_forms_are_rows():
    # Given
    def mirror(images: list[Image.Image]) -> list[Image.Image]:
        return images

    def shape(arrays: list[np.ndarray]) -> list[list[int]]:
        return [list(array.shape) for array in arrays]

    def label(rows: list[Labelled]) -> list[str]:
        return [f"{row.label} {row.picture.width}" for row in rows]

    image = Image.new("RGB", (4, 3))
    # When / Then
    [png] = ferry.local(mirror)([image])
    assert png.startswith(b"\x89PNG")
    assert ferry.local(shape)([np.zeros((2, 3))]) == [[2, 3]]
    assert ferry.local(label)([{"picture": image, "label": "x"}]) == ["x 4"]


def test_stream_is_joined():
    # Given
    def spell(texts: list[str]):
        for place in range(2):
            yield [text[place : place + 1] or None for text in texts]

    # When / Then
    assert ferry.local(spell)(["ab", "c"]) == ["ab", "c"]


def test_what_predict_raises_comes_out():
    # Given
    def predict(batch):
        raise KeyError("weights")

    # When / Then
    with pytest.raises(KeyError, match="weights"):
        ferry.local(predict)([1])
    with pytest.raises(TypeError, match="must not be async"):
        ferry.local(_later)


async def _later(batch):
    return batch
