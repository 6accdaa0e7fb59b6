"""docs/deployments.md: what its diagram of a cluster shows is what the chart makes."""

import re

from tests.deploy.chart import EVERYTHING, NAME, ROOT, needs_helm, render

CLUSTER = (ROOT / "docs/deployments.md").read_text(encoding="utf-8").partition("## A cluster")[2]


def objects(manifests):
    return {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}


@needs_helm
def test_diagram_of_a_cluster_has_objects_of_the_chart():
    # Given: boxes such as worker["Deployment<br>ferry-torchferry-worker<br>more"]
    boxes = re.findall(rf'(\w+)\[\(?"(\w+)<br>({NAME}[\w-]*)', CLUSTER)
    [off] = re.findall(r"^ *class (\S+) off$", CLUSTER, re.MULTILINE)
    # When
    standard, everything = objects(render()), objects(render(EVERYTHING))
    # Then
    assert len(boxes) >= 5
    assert [box for box, *named in boxes if tuple(named) not in everything] == []
    # And those that are dashed are off by default
    dashed = [box for box, *named in boxes if tuple(named) not in standard]
    assert sorted(dashed) == sorted(off.split(","))
