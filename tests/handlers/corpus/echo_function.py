"""A function that answers with what it was sent."""


def handle(data, context):
    if data is None:
        return None
    return [row.get("data") or row.get("body") for row in data]
