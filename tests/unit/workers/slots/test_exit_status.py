"""Why a worker died, in the node's words."""

import signal

import pytest

from workers.slots.exit_status import ExitStatus


@pytest.mark.parametrize(
    ("exit_status", "text"),
    [
        (ExitStatus(-signal.SIGALRM), '-14 cause="response_timeout passed, or it would not end"'),
        (ExitStatus(-signal.SIGKILL), '-9 cause="killed, perhaps for memory"'),
        (ExitStatus(-signal.SIGKILL, "did not load"), '-9 cause="did not load"'),
        (ExitStatus(-signal.SIGSEGV), '-11 cause="crashed in native code: SIGSEGV"'),
        (ExitStatus(-signal.SIGUSR1), "-10"),
        (ExitStatus(3), '3 cause="it could not load the model"'),
        (ExitStatus(0), "0"),
    ],
)
def test_exit_status_is_told_in_words_where_they_are_known(exit_status, text):
    assert str(exit_status) == text
