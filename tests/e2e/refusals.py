"""What a refusal looks like: TorchServe's JSON, with nothing in it that a client should not see."""

import json

SECRETS = ("secret of the handler", "Traceback", "/tmp", "redis", "ferry:")


def assert_error(status: int, content: bytes, expected: tuple[int, str, str]) -> None:
    """The answer has the status and is TorchServe's JSON for it, with its keys in order."""
    text = content.decode()
    code, kind, message = expected
    assert status == code, text
    assert list(json.loads(text).items()) == [("code", code), ("type", kind), ("message", message)]
    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
    assert not [secret for secret in SECRETS if secret in text]
