"""Speaks KServe's first protocol."""

from typing import Any

from ts.torch_handler.request_envelope.base import InstancesEnvelope, document_of


class KServeEnvelope(InstancesEnvelope):
    """Takes `instances` unchanged, and names the outputs predictions or explanations."""

    def open_row(self, row: Any) -> Any:
        return document_of(row).get("instances")

    def close_row(self, outputs: Any, index: int) -> Any:
        is_explanation = self.context.get_request_header(index, "explain") == "True"
        return {"explanations" if is_explanation else "predictions": outputs}
