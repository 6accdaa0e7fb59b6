"""An entry point of its own name, at module level; keeps its state in the module."""

calls = []


def serve_it(data, context):
    calls.append(data)
    if data is None:
        return None
    return [{"calls": len(calls), "first": calls[0], "model": context.model_name}]
