"""What TorchServe's users type: real curl, in all its ways of sending."""

import shutil
import subprocess

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine"),
]

LARGE = bytes(range(256)) * 300  # beyond the size from which curl asks before it sends


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "kitten.jpg"
    path.write_bytes(b"\xff\xd8 a photograph")
    return path


def curl(ingress, *arguments, path="/predictions/echo", stdin=None):
    """Standard output of a curl that succeeded."""
    url = ingress.inference_url + path
    command = ["curl", "-sS", "--max-time", "20", *map(str, arguments), url]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl_uploads_a_file(echo, photo):
    assert curl(echo, "-T", photo) == b"body:|" + photo.read_bytes()
    assert curl(echo, "-T", "-", stdin=b"from a pipe") == b"body:|from a pipe"


def test_curl_sends_forms(echo, photo):
    # When
    file = curl(echo, "-F", f"data=@{photo}")
    typed = curl(echo, "-F", f"data=@{photo};type=application/json")
    fields = curl(echo, "-F", "data=a", "-F", "data=b", "-F", "n=1")
    # Then: of fields with one name the last one arrives
    assert file == b"data:image/jpeg|" + photo.read_bytes()
    assert typed == b"data:application/json|" + photo.read_bytes()
    assert fields == b"data:,n:|b|1"


def test_curl_posts_data(echo, photo):
    # When
    form = curl(echo, "-d", "a=1", "-d", "b=x+y")
    encoded = curl(echo, "--data-urlencode", "text=Hällo & more")
    text = curl(echo, "-H", "Content-Type: text/plain", "-d", "hello")
    json = curl(echo, "-H", "Content-Type: application/json", "-d", '{"a": 1}')
    file = curl(echo, "-H", "Content-Type: image/jpeg", "--data-binary", f"@{photo}")
    name = curl(echo, "--data-binary", "@-", stdin=b"no equals sign")
    # Then: what has no type of its own is a form, whose only field has the data for its name
    assert form == b"a:,b:|1|x y"
    assert encoded.decode() == "text:|Hällo & more"
    assert text == b"body:text/plain|hello"
    assert json == b'body:application/json|{"a": 1}'
    assert file == b"body:image/jpeg|" + photo.read_bytes()
    assert name == b"no equals sign:|"


@pytest.mark.parametrize("expect", ["Expect: 100-continue", "Expect:"])
def test_curl_may_ask_before_it_sends_much(echo, tmp_path, expect):
    # Given
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    # When
    answer = curl(echo, "-i", "-H", expect, "-T", path)
    # Then
    head, _, rest = answer.partition(b"\r\n\r\n")
    if expect != "Expect:":
        assert head == b"HTTP/1.1 100 Continue"
        head, _, rest = rest.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert rest == b"body:|" + LARGE


def test_curl_that_asks_first_is_refused_before_it_sends(echo, tmp_path):
    # Given
    path = tmp_path / "too large"
    path.write_bytes(b"x" * 200_000)
    # When
    answer = curl(echo, "-i", "-H", "Expect: 100-continue", "-T", path, "-w", "%{size_upload}")
    # Then
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"\r\n\r\n0")


def test_curl_keeps_its_connection_until_an_error(echo):
    # Given
    url = f"{echo.inference_url}/predictions/"
    silent = ["-o", "/dev/null"] * 4
    asked = [url + path for path in ("echo", "echo/1.0", "unknown")]
    # When
    told = curl(echo, *silent, "-w", "%{http_code} %{num_connects}\\n", "-d", "a=1", *asked)
    # Then
    assert told.decode().splitlines() == ["200 1", "200 0", "404 0", "200 1"]
