"""Workers share the memory of weights where that is safe, and loading leaves no memory in use."""

import io
import os
import platform
import zipfile
from pathlib import Path

import pytest
import torch
from ts.torch_handler.weights import load_state

from tests.unit.models import MODEL_SOURCE, manifest, saved

CPU = torch.device("cpu")
INPUTS, OUTPUTS = 256, 1024
WEIGHT_BYTES = INPUTS * OUTPUTS * 4
LONG_AGO_S = 1_700_000_000
ONES = torch.ones(1, INPUTS)


class Network(torch.nn.Module):
    """Has a weight, a buffer, and the weight once more where no state dict finds it."""

    def __init__(self):
        super().__init__()
        self.weigh = torch.nn.Linear(INPUTS, OUTPUTS)
        self.register_buffer("shift", torch.zeros(OUTPUTS))
        self.aliases = [self.weigh.weight]
        self.views = [self.weigh.weight.detach()[:10]]


def trained():
    torch.manual_seed(7)
    return Network()


@pytest.fixture
def folder(tmp_path):
    """An unpacked archive, hours old."""
    place = tmp_path / "unpacked"
    place.mkdir()
    write(place, trained().state_dict())
    return place


def write(folder, state, **options):
    path = folder / "weights.pth"
    torch.save(state, path, **options)
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))


def loaded(folder, device=CPU):
    torch.manual_seed(8)
    model = Network()
    load_state(model, str(folder / "weights.pth"), str(folder), device)
    return model.eval()


def mapping(model):
    """Returns the kernel's figures for the memory around the model's weight, in bytes."""
    address = model.weigh.weight.data_ptr()
    found, is_here = {}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            low, high = (int(end, 16) for end in words[0].split("-"))
            is_here = low <= address < high
            if is_here:
                found["file"] = words[5] if len(words) > 5 else ""
        elif is_here and words[-1] == "kB":
            found[words[0].rstrip(":")] = int(words[1]) * 1024
    return found


def is_mapped(model, folder):
    return mapping(model).get("file") == str(folder / "weights.pth")


def test_weights_of_two_loads_are_the_same_pages_until_one_changes_them(folder):
    # When
    first, second = loaded(folder), loaded(folder)
    assert torch.equal(first.weigh(ONES), second.weigh(ONES))

    # Then the kernel has them once
    for model in (first, second):
        memory = mapping(model)
        assert is_mapped(model, folder)
        assert memory["Shared_Clean"] + memory["Shared_Dirty"] >= WEIGHT_BYTES
        assert memory["Anonymous"] == 0
    assert torch.equal(first.weigh(ONES), trained().weigh(ONES))

    # And a change in place is for one only
    with torch.no_grad():
        first.weigh.weight.zero_()
    for model in (second, loaded(folder)):
        assert torch.equal(model.weigh.weight, trained().weigh.weight)


def test_shared_weights_are_found_under_every_name_and_outlive_their_file(folder):
    # When
    model = loaded(folder)
    (folder / "weights.pth").unlink()

    # Then
    assert model.aliases[0] is model.weigh.weight
    assert torch.equal(model.views[0], model.weigh.weight[:10])
    assert torch.equal(model.weigh(ONES), trained().weigh(ONES))


@pytest.mark.parametrize("device", ["cpu", None])
def test_weights_are_loaded_to_a_device_named_as_text_or_not_at_all(device, folder):
    # When / Then
    assert torch.equal(loaded(folder, device).weigh.weight, trained().weigh.weight)


def test_weights_of_another_type_become_the_models(folder):
    # Given
    state = trained().state_dict()
    write(folder, {name: value.half() for name, value in state.items()})

    # When
    model = loaded(folder)

    # Then
    assert model.weigh.weight.dtype == torch.float32
    assert torch.equal(model.weigh.weight, state["weigh.weight"].half().float())


def as_deflated(folder):
    path = folder / "weights.pth"
    deflated = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    path.write_bytes(deflated.getvalue())
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return folder


def as_link(folder):
    link = folder.with_name("link")
    link.symlink_to(folder, target_is_directory=True)
    return link


def as_link_to_weights(folder):
    own = folder.with_name("own")
    own.mkdir()
    (own / "weights.pth").symlink_to(folder / "weights.pth")
    return own


def as_just_written(folder):
    (folder / "weights.pth").touch()
    return folder


def as_old_format(folder):
    write(folder, trained().state_dict(), _use_new_zipfile_serialization=False)
    return folder


@pytest.mark.parametrize(
    "made", [as_link, as_link_to_weights, as_just_written, as_old_format, as_deflated]
)
def test_weights_that_may_change_or_cannot_be_mapped_are_copied(made, folder):
    # When
    model = loaded(made(folder))

    # Then
    assert not is_mapped(model, folder)
    assert torch.equal(model.weigh.weight, trained().weigh.weight)


WASTEFUL = """
import torch
class Wasteful(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weigh = torch.nn.Linear(3, 2)
        pieces = [torch.ones(16_000) for _ in range(1000)]
        # The memory between these pieces is free, and not at an end of the heap.
        self.kept = pieces[::100]
    def forward(self, images):
        return self.weigh(images.mean(dim=(2, 3)))
"""


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to give back")
@pytest.mark.parametrize("handler", ["base_handler", "image_classifier"])
def test_memory_of_loading_is_given_back(handler, load_handler):
    # Given that a model was loaded before, which is when torch takes memory for itself
    state = {f"weigh.{name}": value for name, value in torch.nn.Linear(3, 2).state_dict().items()}
    files = {"w.pth": saved(state), "index_to_name.json": "{}"}

    def load(name, source):
        section = manifest(modelFile=f"{name}.py", serializedFile="w.pth")
        return load_handler(files | {f"{name}.py": source}, handler=handler, manifest=section)

    load("thrifty", MODEL_SOURCE.format(classes=2))
    before = resident_bytes()

    # When 64 MB are in use for a while, twice where the model is prepared
    loaded = load("wasteful", WASTEFUL)

    # Then
    assert loaded is not None
    assert resident_bytes() - before < 16_000_000
