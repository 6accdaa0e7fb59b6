"""Makes a Request of an HTTP body: named parts, undecoded.

Source: TorchServe 0.12 `NettyUtils.getFormData` and `InferenceRequestHandler`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from urllib.parse import unquote_to_bytes

from werkzeug.http import parse_options_header

from batching.errors import BadRequest
from batching.models.spec import URL_QUERY
from batching.protocol import OPEN_INFERENCE_TYPE, Part, Request
from batching.settings.settings import Settings
from ingress.http1.exchange import Content
from ingress.torchserve.routes import PredictionTarget

TIMEOUT_HEADER = "x-request-timeout-ms"

# The length of the JSON that precedes the tensors. Source: Triton's "Binary Tensor Data Extension"
# of the Open Inference Protocol.
TENSOR_HEADER = "inference-header-content-length"

_WHOLE_NUMBER = re.compile(r"[0-9]{1,12}")
_USUAL_PARTS = Settings().max_form_parts
_MAX_PART_HEADER_BYTES = 8192
_MAX_BOUNDARY_CHARS = 200
# A header may contain tabs. Other control characters would end a line elsewhere, or move a cursor.
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_BINARY = "application/octet-stream"
# A part's head as most clients write it; it takes a tenth of the time of parsing.
_USUAL_HEAD = re.compile(
    rb'Content-Disposition: form-data; name="([ !#$&-[\]-~]*)"'
    rb'(; filename="[ !#$&-[\]-~]*"(?:\r\nContent-Type: ([ -~]*))?)?',
    re.IGNORECASE,
)
# Headers that the server writes, or that make a worker run a request alone.
OWN_HEADERS = ("describe", "explain", "url_path", URL_QUERY)
_MULTIPART = "multipart/form-data"
_URLENCODED = "application/x-www-form-urlencoded"


def read_request(
    target: PredictionTarget,
    headers: dict[str, str],
    body: Content,
    query: str = "",
    max_parts: int = _USUAL_PARTS,
    *,
    decodes_itself: bool = False,
    is_tensors: bool = False,
) -> Request:
    """Makes a request of headers and body. The headers, in lower case, become the request's own.

    If the target takes the query, its pairs come as parts before the body's. A model that decodes
    bodies itself gets the query as a header, and urlencoded forms unsplit.

    Raises:
        BadRequest: a form cannot be parsed or has too many parts, or a tensors' length is wrong.
    """
    content_type = headers.get("content-type", "")
    if decodes_itself and not is_tensors:
        headers[URL_QUERY] = query
    if is_tensors:
        json_bytes = headers.get(TENSOR_HEADER, str(len(body)))
        if not _WHOLE_NUMBER.fullmatch(json_bytes) or int(json_bytes) > len(body):
            raise BadRequest("Inference-Header-Content-Length is not a length within the body.")
        parts = [Part("body", f"{OPEN_INFERENCE_TYPE};json={int(json_bytes)}", body)]
    elif decodes_itself and (kind := _mime(content_type)) == _URLENCODED:
        parts = [Part("body", kind, body)]  # `curl -d` calls any body a form
    else:
        parts = read_parts(content_type, body, max_parts)
        if query and target.takes_query and not decodes_itself:
            parts = _last_of_each_name(chain(_urlencoded_parts(query.encode(), max_parts), parts))
    if target.explain is not None:
        headers["explain"] = target.explain
    if target.url_path is not None:
        headers["url_path"] = target.url_path
    return Request(headers, parts)


def first_in_query(query: str, name: str, max_parts: int) -> str:
    parts = _urlencoded_parts(query.encode(), max_parts)
    values = (part.content for part in parts if part.name == name)
    return next(values, b"").decode("utf-8", "replace")


def read_parts(content_type: str, body: Content, max_parts: int = _USUAL_PARTS) -> list[Part]:
    """Returns the parts of a body; anything but a form is one part called `body`.

    Raises:
        BadRequest: a form cannot be parsed or has too many parts.
    """
    mime = _mime(content_type)
    if body and mime == _MULTIPART:
        return _last_of_each_name(_multipart_parts(content_type, body, max_parts))
    if body and mime == _URLENCODED:
        return _last_of_each_name(_urlencoded_parts(body, max_parts))
    return [Part("body", mime, body)]


def is_form(content_type: str) -> bool:
    """Returns whether a body of this type is a form, which takes time to split."""
    return _mime(content_type) in (_MULTIPART, _URLENCODED)


def read_timeout_s(headers: Mapping[str, str]) -> float:
    """Returns how many seconds the client will wait; 0 if it does not say.

    Raises:
        BadRequest: not a number of milliseconds.
    """
    milliseconds = headers.get(TIMEOUT_HEADER)
    if milliseconds is None:
        return 0.0
    if not _WHOLE_NUMBER.fullmatch(milliseconds) or int(milliseconds) == 0:
        raise BadRequest("X-Request-Timeout-Ms must be a whole number of milliseconds, 1 or more.")
    return int(milliseconds) / 1000


def _mime(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _last_of_each_name(parts: Iterable[Part]) -> list[Part]:
    return list({part.name: part for part in parts}.values())


def _too_many(max_parts: int) -> BadRequest:
    return BadRequest(f"A form may have at most {max_parts} parts; raise max_form_parts.")


def _urlencoded_parts(body: Content, max_parts: int) -> Iterator[Part]:
    if body.count(b"&") >= max_parts:
        raise _too_many(max_parts)
    # urllib's parse_qsl refuses bytes beyond ASCII, and curl -d sends whole files this way.
    for field in body.split(b"&"):
        if field:
            # It takes no bytearray, which a body may be.
            name, _, value = bytes(field.replace(b"+", b" ")).partition(b"=")
            yield Part(
                unquote_to_bytes(name).decode("utf-8", "replace"), "", unquote_to_bytes(value)
            )


def _multipart_parts(content_type: str, body: Content, max_parts: int) -> Iterator[Part]:
    boundary = parse_options_header(content_type)[1].get("boundary", "")
    if not 0 < len(boundary) <= _MAX_BOUNDARY_CHARS:
        raise BadRequest("A multipart body needs a boundary in its content type.")
    # werkzeug's decoder took 0.5 ms for one photograph and 0.8 s for a hostile header block, on the
    # event loop. Splitting strictly at CRLF takes a tenth of that; a form with bare LF is refused.
    delimiter = b"\r\n--" + boundary.encode("utf-8", "replace")
    sections = (b"\r\n" + body).split(delimiter, max_parts + 2)
    if len(sections) > max_parts + 2:
        raise _too_many(max_parts)
    for section in sections[1:]:
        if section.startswith(b"--"):
            return
        yield _multipart_part(section)
    raise BadRequest("The multipart body has no end.")


def _multipart_part(section: Content) -> Part:
    # After its delimiter, a section has padding, CRLF, header lines, an empty line, the value.
    head_end = section.find(b"\r\n\r\n", 0, _MAX_PART_HEADER_BYTES)
    padding, line_break, head = section[: max(head_end, 0)].partition(b"\r\n")
    if head_end < 0 or padding.strip(b" \t") or not line_break:
        raise BadRequest(
            f"A part of the multipart body has no proper header of up to {_MAX_PART_HEADER_BYTES} "
            "bytes."
        )
    content = section[head_end + 4 :]
    if usual := _USUAL_HEAD.fullmatch(head):
        name, file, kind_line = usual.groups(b"")
        kind = (_mime(kind_line.decode()) or _BINARY) if file else ""
        return Part(name.decode(), kind, content)
    lines = head.decode("utf-8", "replace").split("\r\n")
    if any(map(_CONTROLS.search, lines)):
        raise BadRequest("A part of the multipart body has control characters in its header.")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    disposition = parse_options_header(headers.get("content-disposition"))[1]
    if "name" not in disposition:
        raise BadRequest("A part of the multipart body has no name.")
    kind = ""
    if "filename" in disposition:
        # Without a file name the handler gets bytes, whatever type the part claims.
        kind = _mime(headers.get("content-type", "")) or _BINARY
    return Part(disposition["name"], kind, content)
