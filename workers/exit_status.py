"""What the exit status of a worker process tells the reader of a log."""

import signal

EXIT_OUT_OF_MEMORY = -signal.SIGKILL

_CAUSES = {
    EXIT_OUT_OF_MEMORY: "killed, perhaps for memory",
    -signal.SIGSEGV: "crashed in native code: SIGSEGV",
    -signal.SIGBUS: "crashed in native code: SIGBUS",
    -signal.SIGABRT: "crashed in native code: SIGABRT",
    -signal.SIGFPE: "crashed in native code: SIGFPE",
    -signal.SIGILL: "the processor does not know an instruction of its native code: SIGILL",
}


def status_text(returncode: int, response_timeout_s: float) -> str:
    """The status, and in words what ended the process where a known signal has."""
    if returncode == -signal.SIGALRM:
        cause = f"response_timeout of {response_timeout_s:g} s passed"
    else:
        cause = _CAUSES.get(returncode, "")
    return f'{returncode} cause="{cause}"' if cause else str(returncode)
