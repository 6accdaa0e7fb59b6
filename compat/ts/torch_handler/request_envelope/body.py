"""Gives handlers the rows' contents without their keys."""

from typing import Any

from ts.torch_handler.request_envelope.base import BaseEnvelope, content_of


class BodyEnvelope(BaseEnvelope):
    def parse_input(self, data: Any) -> Any:
        return [content_of(row) for row in data]

    def format_output(self, data: Any) -> Any:
        return data
