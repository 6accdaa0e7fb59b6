"""What the handler string of an archive means. Imports nothing that a handler needs."""

from pathlib import PurePosixPath

DEFAULT_FUNCTION = "handle"
BUILT_IN_PACKAGE = "ts.torch_handler"


def split_handler(handler: str) -> tuple[str, str]:
    """`some/path/file.py:function` → (`file`, `function`)."""
    file, _, function_name = handler.partition(":")
    return PurePosixPath(file).name.removesuffix(".py"), function_name or DEFAULT_FUNCTION
