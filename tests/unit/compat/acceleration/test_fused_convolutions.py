"""A convolution, a sum and a relu become one operation; a model that forbids it stays as it is."""

import pytest
import torch
from ts.torch_handler.acceleration import fused_convolutions
from ts.torch_handler.acceleration.fused_convolutions import Call, can_fuse, fuse_convolutions

from tests.unit.models import frozen

CHANNELS, LARGEST = 16, 5
IN_PLACE = "mkldnn::_convolution_pointwise_("


class Block(torch.nn.Module):
    """Two convolutions; subclasses say what happens around them."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.second = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)

    def branch(self, images):
        return self.second(torch.relu_(self.first(images)))


class Residual(Block):
    """As in a ResNet."""

    def forward(self, images):
        early = torch.relu_(self.first(images))
        late = self.branch(early)
        late += early
        return torch.relu_(late)


class TwoConvolutionsAdded(Block):
    """As where a ResNet changes its size."""

    def forward(self, images):
        return torch.relu(self.first(images) + self.second(images))


class SummandReadLater(Block):
    def forward(self, images):
        early = torch.relu(self.first(images))
        late = torch.relu(self.branch(early) + early)
        return late - torch.max_pool2d(early, 3, stride=1, padding=1)


class ViewOfSummandReadLater(Block):
    def forward(self, images):
        early = torch.relu(self.first(images))
        view = early[:, :1]
        late = torch.relu(self.branch(early) + early)
        return late * view


class SummandIsConvolved(Block):
    def forward(self, images):
        early = torch.relu(self.first(images))
        return self.second(early) + early


class SummandIsTheInput(Block):
    def forward(self, images):
        return torch.relu(self.second(self.first(images)) + images)


class SummandIsAnswered(Block):
    def forward(self, images):
        early = torch.relu(self.first(images))
        return torch.cat((torch.relu(self.branch(early) + early), early))


class ConvolutionSharedByTwo(Block):
    def forward(self, images):
        shared = self.first(images)
        return torch.relu(shared) - self.second(shared)


class SummandOfAnotherSize(Block):
    def forward(self, images):
        largest = torch.max_pool2d(self.first(images), images.shape[2])
        return torch.relu(self.branch(images) + largest)


class WeightedSum(Block):
    def forward(self, images):
        early = torch.relu(self.first(images))
        return torch.add(self.branch(early), early, alpha=3)


class ReluInABranch(Block):
    def forward(self, images):
        early = self.first(images)
        if images.shape[0] > 1:
            early = torch.relu(early)
        return self.second(early)


class Settings(torch.nn.Module):
    """Convolutions with different settings."""

    def __init__(self):
        super().__init__()
        self.see = torch.nn.Sequential(
            torch.nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1, groups=4),
            torch.nn.ReLU(),
            torch.nn.Conv2d(CHANNELS, CHANNELS, (3, 2), padding=(2, 1), dilation=2, bias=False),
            torch.nn.ReLU(),
            torch.nn.Conv2d(CHANNELS, 2 * CHANNELS, 1),
        )

    def forward(self, images):
        return self.see(images)


class Transposed(Block):
    """One convolution that may be fused beside one that goes the other way."""

    def __init__(self):
        super().__init__()
        self.second = torch.nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, stride=2)

    def forward(self, images):
        return torch.relu(self.second(torch.relu(self.first(images))))


class OneDimension(Block):
    """One convolution of images beside one of rows."""

    def __init__(self):
        super().__init__()
        self.second = torch.nn.Conv1d(CHANNELS, CHANNELS, 3)

    def forward(self, images):
        return torch.relu(self.second(torch.relu(self.first(images)).flatten(2)))


class Written(Block):
    """Changes its input."""

    def forward(self, images):
        images[:, 0] = 0.0
        return torch.relu(self.first(images))


class NoConvolution(Block):
    def forward(self, images):
        return images.mean(dim=(2, 3))


ALL_FUSED = [Residual, TwoConvolutionsAdded]
OVERWRITE_NOTHING = [
    SummandReadLater,
    SummandIsConvolved,
    ViewOfSummandReadLater,
    SummandIsTheInput,
    SummandIsAnswered,
    SummandOfAnotherSize,
]
OTHERS = [ConvolutionSharedByTwo, WeightedSum, ReluInABranch]

needs_onednn = pytest.mark.skipif(
    not can_fuse(torch.device("cpu"), torch.float32), reason="this torch has no oneDNN"
)


def images(rows, size=12):
    """Returns images in the layout that prepared models get."""
    pixels = torch.randn(rows, CHANNELS, size, size, generator=torch.Generator().manual_seed(rows))
    return pixels.to(memory_format=torch.channels_last)


def fused_from(model, *, size=12, largest=LARGEST):
    """Returns frozen TorchScript after fusing; None if it is left as it is."""
    calls = [Call(rows, threads) for rows in range(1, largest + 1) for threads in (2, 1)]
    with torch.inference_mode():
        return fuse_convolutions(model, images(1, size), calls)


@pytest.fixture
def fuse():
    """Returns the frozen model of a class, and the same fused."""

    def run(kind, largest=LARGEST):
        torch.manual_seed(2)
        model = frozen(kind())
        return model, fused_from(model, largest=largest)

    return run


@needs_onednn
@pytest.mark.parametrize("kind", ALL_FUSED + OVERWRITE_NOTHING + OTHERS)
def test_fused_model_answers_as_the_frozen_one_for_batches_of_any_size(fuse, kind):
    # Given
    model, fused = fuse(kind)

    # When a batch is run three times, then torch has compiled it
    for rows in [*range(1, LARGEST + 2)] * 3:
        given = images(rows)
        with torch.inference_mode():
            answer = fused(given)

            # Then
            assert torch.equal(given, images(rows))
            assert torch.allclose(answer, model(images(rows)), atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("kind", ALL_FUSED)
def test_sum_and_relu_are_part_of_the_convolution(fuse, kind):
    # When
    graph = str(fuse(kind)[1].graph)

    # Then
    assert IN_PLACE in graph
    assert not any(kind in graph for kind in ("aten::conv2d", "aten::add", "aten::relu"))


@needs_onednn
@pytest.mark.parametrize("kind", OVERWRITE_NOTHING)
def test_summand_that_another_operation_sees_is_not_overwritten(fuse, kind):
    assert IN_PLACE not in str(fuse(kind)[1].graph)


@needs_onednn
@pytest.mark.parametrize("kind", [Written, NoConvolution])
def test_model_that_writes_or_has_no_convolution_is_not_fused(fuse, kind):
    assert fuse(kind)[1] is None


@needs_onednn
def test_weights_stay_plain_where_batches_are_large(fuse):
    assert "ConstantMKLDNNTensor" in str(fuse(Residual)[1].graph)
    assert "ConstantMKLDNNTensor" not in str(fuse(Residual, largest=64)[1].graph)


@needs_onednn
@pytest.mark.parametrize(
    "same", [lambda rows, threads: rows, lambda rows, threads: threads, lambda *call: call]
)
def test_weights_stay_plain_where_one_call_wants_another_layout(fuse, monkeypatch, same):
    # Given layouts that depend on the rows, on the threads or on both
    def layout(packed):
        return same(packed.rows, packed.threads)

    class Packed:
        def __init__(self, weight, settings, size):
            self.rows, self.threads = size[0], torch.get_num_threads()

    monkeypatch.setattr(fused_convolutions, "_packed", Packed)
    monkeypatch.setattr(fused_convolutions, "_layout", layout)
    torch.set_num_threads(2)

    # When
    graph = str(fuse(Residual)[1].graph)

    # Then
    assert "ConstantMKLDNNTensor" not in graph
    assert torch.get_num_threads() == 2


def fused_count(model):
    return str(model.graph).count("mkldnn::_convolution_pointwise")


@needs_onednn
@pytest.mark.parametrize("size", [12, 13])
@pytest.mark.parametrize("kind", [*ALL_FUSED, Settings])
def test_traced_model_is_fused_as_the_scripted_one(kind, size):
    # Given
    torch.manual_seed(2)
    model = kind().eval()
    traced = frozen(model, images(1, size))

    # When
    fused = fused_from(traced, size=size)

    # Then
    assert fused is not None
    assert fused_count(fused) == fused_count(fused_from(frozen(model), size=size))
    for rows in (1, LARGEST) * 3:
        given = images(rows, size)
        with torch.inference_mode():
            assert torch.allclose(fused(given), traced(given), atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("kind", [Transposed, OneDimension])
def test_other_convolutions_of_a_traced_model_stay_as_they_are(kind):
    # Given
    torch.manual_seed(2)
    traced = frozen(kind(), images(1))

    # When
    fused = fused_from(traced)

    # Then
    assert fused_count(fused) == 1
    assert str(fused.graph).count("aten::_convolution") == 1
    with torch.inference_mode():
        assert torch.allclose(fused(images(LARGEST)), traced(images(LARGEST)), atol=1e-5)


def test_convolutions_are_fused_on_a_processor_only():
    assert not can_fuse(torch.device("cuda"), torch.float32)
