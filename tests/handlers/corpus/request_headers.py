"""What a request's headers are, and what the context knows."""


def handle(data, context):
    if data is None:
        return None
    answers = []
    for index in range(len(data)):
        headers = context.get_all_request_header(index)
        answers.append(
            {
                "header": context.get_request_header(index, "X-Corpus"),
                "explain": headers.get("explain"),
                "url_path": headers.get("url_path"),
                "has_id": bool(context.get_request_id(index)),
                "ids": len(context.request_ids),
                "sequence": context.get_sequence_id(index) or "",
                "manifest": context.manifest["model"]["modelName"],
                "properties": sorted(context.system_properties),
                "gpu": context.system_properties["gpu_id"],
            }
        )
    return answers
