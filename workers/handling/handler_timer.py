"""The time that a handler may take."""

import signal


class HandlerTimer:
    """Ends the process of a handler that takes too long.

    The timer is the kernel's: it needs no cooperation of a handler that hangs in C++ or holds the
    interpreter lock. Every thread's stack is written before that, and the node, which sees how the
    process ended, releases its requests. Without `timeout_s`, in a process that is no worker, there
    is no timer.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._is_running = False

    def start(self) -> None:
        self._is_running = True
        self._set(self._timeout_s)

    def stop(self) -> None:
        self._is_running = False
        self._set(0)

    def pause(self) -> None:
        """Lets the handler wait for a client."""
        self._set(0)

    def resume(self) -> None:
        """Starts the timer anew, unless the handler has returned."""
        self._set(self._timeout_s)
        # A thread of the handler may send on after the handler has returned, and the timer would
        # end an idle worker. Checked last, as the handler may return at any moment.
        if not self._is_running:
            self._set(0)

    def _set(self, seconds: float | None) -> None:
        if self._timeout_s is not None and seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, seconds)
