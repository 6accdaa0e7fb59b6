"""Triton's own client against a handler that knows nothing of its protocol, and an envelope."""

from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.e2e.archives import make_archive

pytestmark = pytest.mark.slow

HANDLER = Path(__file__).with_name("doubling_handler.py").read_text()


@pytest.fixture(scope="module")
def doubling(server):
    name = make_archive(server.store, "doubling", {"handler.py": HANDLER})
    with server.model(name, "doubling", batch_size=4, max_batch_delay=20):
        yield server


def client_of(server):
    return triton.InferenceServerClient(f"127.0.0.1:{server.port}")


def tensor(name, values, *, binary=True, datatype=None):
    array = np.asarray(values)
    kind = datatype or triton.np_to_triton_dtype(array.dtype)
    found = triton.InferInput(name, list(array.shape), kind)
    found.set_data_from_numpy(array, binary_data=binary)
    return found


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_triton_client_gets_tensors_from_a_handler_that_knows_none(doubling, binary_in, binary_out):
    # Given
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    inputs = [tensor("x", values, binary=binary_in)]
    asked = None
    if binary_out is not None:
        asked = [triton.InferRequestedOutput("y", binary_data=binary_out)]
    # When
    with client_of(doubling) as client:
        result = client.infer("doubling", inputs, outputs=asked, request_id="mine")
    # Then
    assert np.array_equal(result.as_numpy("y" if asked else "output"), values * 2)
    document = result.get_response()
    assert (document["id"], document["model_name"]) == ("mine", "doubling")
    assert ("parameters" in document["outputs"][0]) is (binary_out is not False)


def test_triton_client_gets_outputs_by_name(doubling):
    # Given
    text = tensor("data", np.array(["tensors"], dtype=object), binary=False)
    asked = [triton.InferRequestedOutput(name) for name in ("ids", "sums")]
    # When
    with client_of(doubling) as client:
        every = client.infer("doubling", [text])
        some = client.infer("doubling", [text], outputs=asked[:1])
    # Then
    assert every.as_numpy("sums").tolist() == [1.5, 2.5]
    assert every.as_numpy("ids").tolist() == [[1], [2]]
    assert some.as_numpy("ids").tolist() == [[1], [2]]
    assert some.as_numpy("sums") is None


def test_triton_client_is_told_what_is_wrong(doubling):
    # Given
    fail = [tensor("data", np.array([b"fail"], dtype=object))]
    good = [tensor("data", np.array([1.0]))]
    with client_of(doubling) as client:
        # When / Then
        for model, inputs, words in (
            ("doubling", fail, "Prediction failed"),
            ("nobody", good, "Model not found: nobody"),
        ):
            with pytest.raises(InferenceServerException, match=words):
                client.infer(model, inputs)
        with pytest.raises(InferenceServerException, match="Model version: 9 does not exist"):
            client.infer("doubling", good, model_version="9")
        assert client.infer("doubling", good, model_version="1.0").as_numpy("output") == [2.0]


def test_triton_client_finds_server_and_model_ready(doubling):
    with client_of(doubling) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("doubling")
        assert client.is_model_ready("doubling", "1.0")
        assert not client.is_model_ready("nobody")
        assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
        described = client.get_model_metadata("doubling")
        assert (described["name"], described["versions"]) == ("doubling", ["1.0"])
        with pytest.raises(InferenceServerException, match="Model not found: nobody"):
            client.get_model_metadata("nobody")
