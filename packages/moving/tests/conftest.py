"""Runs coroutine tests, as the tests of the server do."""

from tests.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
