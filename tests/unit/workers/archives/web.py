"""A network for tests of downloads."""

import io
import zipfile

import httpx

from batching.settings.settings import Settings
from workers.archives.fetch import Downloader, locate_archive

PUBLIC = "93.184.216.34"
URL = "https://models.example/store/echo.mar"
ALLOWED = r"https://models\.example/.*"


def archive_bytes(handler=b"def handle(data, context): return data"):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        # Not by its name alone: that writes the time down, and the next archive would be another.
        bundle.writestr(zipfile.ZipInfo("echo.py"), handler)
    return buffer.getvalue()


def locate(url, store, web=None, *, allowed_urls=ALLOWED, load_models="", **more):
    """The archive that the URL names, on a node with this store and network."""
    settings = Settings(
        model_store=store,
        work_dir=store and store.parent / "work",
        allowed_urls=allowed_urls,
        load_models=load_models,
    )
    if web is not None:
        more["downloader"] = web.downloader(allowed_urls)
    return locate_archive(url, settings, **more)


class Web:
    """The network: answers by host and path, and remembers its requests."""

    def __init__(self, answers, addresses=None):
        self.answers = answers
        self.addresses = addresses or {}
        self.requests = []
        self.resolved = []

    def resolve(self, host, port):
        self.resolved.append((host, port))
        return self.addresses.get(host, [PUBLIC])

    def handle(self, request):
        self.requests.append(request)
        answer = self.answers[request.headers["host"] + request.url.path]
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    def downloader(self, allowed_urls=ALLOWED, **limits):
        transport = httpx.MockTransport(self.handle)
        return Downloader(allowed_urls, self.resolve, transport, **limits)


def served(content):
    # Not content=...: that response would be read before it can be streamed.
    length = {"content-length": str(len(content))}
    return httpx.Response(200, headers=length, stream=httpx.ByteStream(content))


def web_with_archive(meanwhile=lambda: None):
    """A network with one archive; `meanwhile` is called when it is asked for."""

    def answer():
        meanwhile()
        return served(archive_bytes())

    return Web({"models.example/store/echo.mar": answer})


def redirect(location):
    return httpx.Response(302, headers={"location": location})
