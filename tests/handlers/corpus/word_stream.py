"""A streamed answer, a word at a time."""

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    words = bytes(data[0]["body"]).decode().split()
    for word in words[:-1]:
        send_intermediate_predict_response(
            [f"{word} "] * len(data), context.request_ids, "Intermediate", 200, context
        )
    return [words[-1]] * len(data)
