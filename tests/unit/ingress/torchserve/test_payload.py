import re

import pytest

from batching.errors import BadRequest
from batching.protocol import Part
from ingress.torchserve import payload
from ingress.torchserve.payload import read_parts, read_request, read_timeout_s
from ingress.torchserve.routes import PredictionTarget
from tests.support import processor_time

BOUNDARY = "multipart/form-data; boundary=BB"
FORM = "application/x-www-form-urlencoded"


def multipart(*parts, boundary="BB"):
    """Parts are (header lines, content)."""
    blocks = [f"--{boundary}\r\n".encode() + head + b"\r\n\r\n" + body for head, body in parts]
    return b"\r\n".join([*blocks, f"--{boundary}--\r\n".encode()])


def field(name, content):
    return f'Content-Disposition: form-data; name="{name}"'.encode(), content


def file(name, content, kind="Content-Type: image/jpeg"):
    head = f'Content-Disposition: form-data; name="{name}"; filename="f"\r\n{kind}'
    return head.encode().strip(), content


@pytest.mark.parametrize(
    ("content_type", "mime"),
    [
        ("", ""),
        ("application/json; charset=utf-8", "application/json"),
        ("Text/Plain", "text/plain"),
        ("image/jpeg", "image/jpeg"),
    ],
)
def test_body_is_one_part_with_its_mime_type(content_type, mime):
    # Given / When
    parts = read_parts(content_type, b"\x00\xff")
    # Then
    assert parts == [Part("body", mime, b"\x00\xff")]


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        (FORM, b"a+b=%C3%A9+2&%C3%A9=3"),
        (BOUNDARY, multipart(file("data", b"\xff"), field("words", b"x"))),
    ],
)
def test_body_may_be_the_place_that_it_was_read_into(content_type, body):
    assert read_parts(content_type, bytearray(body)) == read_parts(content_type, body)


def test_multipart_keeps_the_types_of_files_and_makes_fields_plain():
    # Given
    body = multipart(
        file("data", b"\xff\xd8\r\n--B\r\n"),
        file("raw", b"x", kind=""),
        field("words", b"caf\xc3\xa9"),
        file("json", b"{}", kind="Content-Type: application/json; charset=utf-8"),
    )
    # When
    parts = read_parts(BOUNDARY, body)
    # Then
    assert parts == [
        Part("data", "image/jpeg", b"\xff\xd8\r\n--B\r\n"),
        Part("raw", "application/octet-stream", b"x"),
        Part("words", "", b"caf\xc3\xa9"),
        Part("json", "application/json", b"{}"),
    ]


def test_multipart_takes_tabs_and_any_script_in_a_head():
    body = multipart(file("名\u3000é", b"x", kind="Content-Type:\ttext/plain;\ta=b"))
    assert read_parts(BOUNDARY, body) == [Part("名\u3000é", "text/plain", b"x")]


def test_multipart_reads_a_quoted_boundary():
    content_type = 'multipart/form-data; boundary="a b:c"'
    body = multipart(field("x", b"1"), boundary="a b:c")
    assert read_parts(content_type, body) == [Part("x", "", b"1")]


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", multipart(field("a", b"1"))),
        ("multipart/form-data; boundary=" + "b" * 300, b"--b--"),
        (BOUNDARY, b"no boundary at all"),
        (BOUNDARY, multipart(field("a", b"1"))[:-8]),
        (BOUNDARY, multipart((b"X: y", b"no name"))),
        (BOUNDARY, multipart((b"Content-Disposition: form-data", b"no name"))),
        (BOUNDARY, b"--BB\r\n\r\nno header\r\n--BB--\r\n"),
        (BOUNDARY, b"--BB\n\nbare line feeds\n--BB--\n"),
        (BOUNDARY, multipart(*[field(f"p{n}", b"") for n in range(1001)])),
        (BOUNDARY, multipart((b"X: " + b"a" * 9000, b""))),
        (BOUNDARY, multipart(file("a", b"", kind="Content-Type: text/x\nX: 1"))),
        (BOUNDARY, multipart(file("a", b"", kind="Content-Type: text/x\rX: 1"))),
        (BOUNDARY, multipart(file("a", b"", kind="Content-Type: text/\x1b[2J"))),
        (BOUNDARY, multipart(file("a", b"", kind="Content-Type: text/\0"))),
        (BOUNDARY, multipart(file("a", b"", kind="Content-Type: text/\x7f"))),
        (BOUNDARY, multipart(file("a", b"", kind="Content-Type: text/\x9b2J"))),
        (BOUNDARY, multipart(file("a", b"", kind="X-Unread: \x07"))),
        (BOUNDARY, multipart(field("a\nb", b""))),
        (FORM, b"&".join(b"a%d=1" % n for n in range(1001))),
    ],
)
def test_b06_form_is_refused_when_it_cannot_be_read(content_type, body):
    with pytest.raises(BadRequest):
        read_parts(content_type, body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (multipart(*[field("p", b"")] * 5000), "at most 1000 parts; raise max_form_parts"),
        (b"--BB\r\n" + b"X: a\r\n" * 1_000_000 + b"\r\n", "no proper header"),
        (
            b"--BB\r\nContent-Disposition: form-data; " + b'a*0="b"; ' * 500_000 + b"\r\n\r\n",
            "no proper header",
        ),
        (b"\r\n" * 3_000_000, "no end"),
    ],
)
def test_b06_multipart_is_refused_at_little_cost_when_it_is_hostile(body, reason):
    with processor_time(0.2), pytest.raises(BadRequest, match=reason):
        read_parts(BOUNDARY, body)


@pytest.mark.parametrize("form", [file, field])
def test_form_may_have_hundreds_of_parts_and_costs_little(form):
    # Given: the frames of a film, say
    body = multipart(*[form(f"frame{number}", b"x") for number in range(1000)])
    # When
    with processor_time(0.05):
        parts = read_parts(BOUNDARY, body)
    # Then
    assert [part.name for part in parts] == [f"frame{number}" for number in range(1000)]


def test_form_has_as_many_parts_as_the_setting_says():
    # Given
    forms = {BOUNDARY: multipart(field("a", b"1"), field("b", b"2")), FORM: b"a=1&b=2"}
    for content_type, body in forms.items():
        asked = PredictionTarget("m", None, "False", ""), {"content-type": content_type}, body
        # When / Then
        assert len(read_request(*asked, max_parts=2).parts) == 2
        with pytest.raises(BadRequest, match="at most 1 parts; raise max_form_parts"):
            read_request(*asked, max_parts=1)


@pytest.mark.parametrize(
    "head",
    [
        b'name="a\\"b"',
        b'name="a%22b"; filename="f"\r\nContent-Type: Text/Plain; charset=x',
        b"name=a; filename=f\r\ncontent-type:text/plain",
        b'filename="f"; name="a"\r\nX: y',
        b'name="a"; filename="f"\r\nContent-Type:  Text/Plain ;a=b',
        b'name="a"; filename=""\r\nContent-Type: ',
        b'name="a"; filename="f"',
        b'name="a"',
        b'name=""',
    ],
)
def test_usual_heads_of_parts_are_read_as_all_others(head, monkeypatch):
    # Given
    body = multipart((b"Content-Disposition: form-data; " + head, b"value"))
    # When
    quick = read_parts(BOUNDARY, body)
    monkeypatch.setattr(payload, "_USUAL_HEAD", re.compile(b"(?!)"))
    # Then
    assert quick == read_parts(BOUNDARY, body)


@pytest.mark.parametrize("content", [b"\r" * 6_000_000, b"\r\n--B" * 1_000_000])
def test_b06_multipart_costs_little_when_all_of_it_might_be_a_boundary(content):
    # Given
    body = multipart(field("a", content))
    # When
    with processor_time(0.2):
        [part] = read_parts(BOUNDARY, body)
    # Then
    is_whole = part.content == content  # not in the assert, which would show megabytes
    assert is_whole


def test_urlencoded_has_a_part_per_field():
    parts = read_parts(FORM, b"a=1+2%21&b=&c&a=3&&%C3%A9=\xff")
    assert parts == [
        Part("a", "", b"3"),
        Part("b", "", b""),
        Part("c", "", b""),
        Part("é", "", b"\xff"),
    ]


def test_urlencoded_takes_a_file_for_a_name():
    # Given: what `curl --data-binary @photo` sends
    [part] = read_parts(FORM, b"\xff\xd8\xff\xe0")
    # Then
    assert (part.name, part.content) == ("\ufffd" * 4, b"")
    read_request(PredictionTarget("m", None, "False", ""), {"content-type": FORM}, b"\xff").encode()


def test_request_headers_say_what_the_path_asked():
    # Given
    headers = {"explain": "forged", "url_path": "forged", "x-a": "1"}
    # When
    request = read_request(PredictionTarget("m", "1.0", "True", "v1/chat"), headers, b"")
    # Then
    assert request.headers == {"explain": "True", "url_path": "v1/chat", "x-a": "1"}


def test_timeout_header_is_milliseconds():
    assert read_timeout_s({"x-request-timeout-ms": "1500"}) == 1.5
    assert read_timeout_s({}) == 0


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "soon", "1" * 13, "\u0663", "1_0", "1e3"])
def test_timeout_header_is_refused_when_it_is_no_number_of_milliseconds(text):
    with pytest.raises(BadRequest):
        read_timeout_s({"x-request-timeout-ms": text})
