"""Rows of JSON, whatever the client's content type; answers of several kinds."""

import json


def handle(data, context):
    if data is None:
        return None
    answers = []
    for row in data:
        body = row.get("body")
        if isinstance(body, (bytes, bytearray)):
            body = json.loads(body)
        kind = body.get("answer", "dict")
        total = sum(body["numbers"])
        answers.append(
            {
                "dict": {"total": total, "mean": total / len(body["numbers"])},
                "list": sorted(body["numbers"]),
                "number": total,
                "text": f"total {total} €",
                "null": None,
                "bytes": bytes(body["numbers"]),
            }[kind]
        )
    return answers
