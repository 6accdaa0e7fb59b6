"""Needs a package that the archive's requirements.txt names."""

import ferry_test_package


def handle(data, context):
    if data is None:
        return None
    return [{"answer": ferry_test_package.ANSWER} for _ in data]
