"""The Helm chart: what it makes is valid, safe, and fits the commands and settings that exist."""

import json
import re
import tarfile

import pytest
import yaml
from click.testing import CliRunner

from batching.settings.loading import load_settings
from batching.settings.settings import SETTINGS
from ferry.main import main
from tests.deploy.chart import (
    CHART,
    EVERYTHING,
    NAME,
    ONE_NODE,
    ROOT,
    Refused,
    container,
    environment,
    find,
    lint,
    needs_helm,
    package,
    render,
    validate,
)

PARTS = ("ingress", "worker")
VALUES = {"defaults": {}, "one-node": ONE_NODE, "everything": EVERYTHING}
TEMPLATES = {path.name: path.read_text() for path in (CHART / "templates").iterdir()}


@pytest.fixture(scope="module", params=VALUES)
def manifests(request):
    return render(VALUES[request.param])


@pytest.fixture(scope="module")
def everything():
    return render(EVERYTHING)


def pod(manifests, part):
    return find(manifests, "Deployment", f"{NAME}-{part}")["spec"]["template"]["spec"]


# --- without Helm


def test_chart_refuses_settings_that_it_sets_by_itself():
    # Given
    schema = json.loads((CHART / "values.schema.json").read_text())
    refused = set(schema["properties"]["config"]["propertyNames"]["not"]["enum"])
    written = {name for text in TEMPLATES.values() for name in re.findall(r"FERRY_([A-Z_]+)", text)}
    # Then, by either name: in `config` they would be set twice
    fields = {name.lower() for name in written} | {"redis_url"}
    assert fields <= {it.name for it in SETTINGS}
    keys = {it.key for it in SETTINGS if it.name in fields}
    assert fields | keys == refused


# --- with Helm


@needs_helm
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_chart_passes_lint(values):
    assert lint(values) == []


@needs_helm
@pytest.mark.parametrize("part", PARTS)
def test_chart_runs_commands_that_the_cli_has(manifests, part):
    # Given
    program, command, *options = container(manifests, part)["command"]
    # Then
    assert program == "ferry"
    assert options == []
    assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0


@needs_helm
@pytest.mark.parametrize("part", PARTS)
def test_chart_sets_settings_that_load(manifests, part):
    # Given the variables, and the URL that a Secret brings
    variables = environment(manifests, part)
    # When
    settings, _ = load_settings(environment={**variables, "REDIS_URL": "rediss://redis:6379"})
    # Then
    assert settings.drain_timeout_s == 60
    assert (settings.probe_dir is not None) == (part == "worker")


@needs_helm
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (500, "500"),
        (67108864, "67108864"),
        (10**19, "10000000000000000000"),
        (0.5, "0.5"),
        (-1, "-1"),
        (True, "true"),
        ("1e6", "1e6"),
    ],
    ids=str,
)
def test_chart_writes_values_as_they_were_given(part, value, text):
    # When: Helm reads every number of a file as a float
    manifests = render({"config": {"a": value}, part: {"extraEnv": {"B": value}}})
    # Then
    variables = environment(manifests, part)
    assert (variables["FERRY_A"], variables["B"]) == (text, text)


@needs_helm
@pytest.mark.parametrize("part", PARTS)
def test_chart_gives_a_drain_the_time_it_takes(part):
    # When
    manifests = render({part: {"drainTimeoutSeconds": 100}})
    # Then
    settings, _ = load_settings(environment=environment(manifests, part))
    assert settings.drain_timeout_s == 100
    assert pod(manifests, part)["terminationGracePeriodSeconds"] >= settings.drain_delay_s + 105


@needs_helm
@pytest.mark.parametrize("part", PARTS)
def test_chart_runs_without_rights(manifests, part):
    # Given
    spec, context = pod(manifests, part), container(manifests, part)["securityContext"]
    # Then
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert container(manifests, part)["resources"]["limits"]["memory"]
    # And secrets are others' objects
    [url] = [v for v in container(manifests, part)["env"] if v["name"] == "REDIS_URL"]
    assert url["valueFrom"]["secretKeyRef"] == {"name": "torchferry-redis", "key": "redis-url"}
    assert not [m for m in manifests if m["kind"] == "Secret"]
    # And what is written has a place outside of the root
    writable = {m["mountPath"] for m in container(manifests, part)["volumeMounts"]}
    assert "/tmp" in writable
    for name in ("FERRY_WORK_DIR", "FERRY_PROBE_DIR"):
        assert environment(manifests, part).get(name, "/tmp") in writable


@needs_helm
@pytest.mark.parametrize("part", PARTS)
def test_chart_selects_its_pods_by_labels_that_they_have(manifests, part):
    # Given
    template = find(manifests, "Deployment", f"{NAME}-{part}")["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    others = [other for other in PARTS if other != part]
    [other] = [find(manifests, "Deployment", f"{NAME}-{name}") for name in others]
    selectors = [
        find(manifests, "Deployment", f"{NAME}-{part}")["spec"]["selector"]["matchLabels"],
        find(manifests, "PodDisruptionBudget", f"{NAME}-{part}")["spec"]["selector"]["matchLabels"],
        find(manifests, "NetworkPolicy", f"{NAME}-{part}")["spec"]["podSelector"]["matchLabels"],
        pod(manifests, part)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    if part == "ingress":
        services = [m for m in manifests if m["kind"] == "Service"]
        assert len(services) >= 2
        selectors += [service["spec"]["selector"] for service in services]
    # Then, and only they
    for selector in selectors:
        assert selector.items() <= labels
        other_labels = other["spec"]["template"]["metadata"]["labels"].items()
        assert not selector.items() <= other_labels


@needs_helm
def test_chart_opens_management_with_tokens_and_inside_of_the_cluster_only(everything):
    # Given, where no tokens are asked for
    closed = render()
    assert environment(closed, "ingress")["FERRY_MANAGEMENT_ADDRESS"] == "http://127.0.0.1:8081"
    services = [m["metadata"]["name"] for m in closed if m["kind"] == "Service"]
    assert sorted(services) == [NAME, f"{NAME}-metrics"]
    assert "management" not in {p["name"] for p in container(closed, "ingress")["ports"]}
    # Then
    variables = environment(everything, "ingress")
    assert variables["FERRY_MANAGEMENT_ADDRESS"] == "http://0.0.0.0:8081"
    assert variables["FERRY_KEY_FILE"] == "/etc/torchferry/keys/key_file.json"
    assert find(everything, "Service", f"{NAME}-management")["spec"]["type"] == "ClusterIP"
    # And only for the peers that are named
    rules = find(everything, "NetworkPolicy", f"{NAME}-ingress")["spec"]["ingress"]
    [management] = [rule for rule in rules if rule["ports"][0]["port"] == "management"]
    assert management["from"] == EVERYTHING["networkPolicy"]["managementFrom"]


@needs_helm
@pytest.mark.parametrize("part", PARTS)
def test_chart_signs_webhooks_with_what_a_secret_has(everything, part):
    # Then: ingresses accept receivers, and nodes tell them
    [secrets] = [v for v in container(everything, part)["env"] if "WEBHOOK_SECRETS" in v["name"]]
    assert secrets["valueFrom"]["secretKeyRef"] == {"name": "ferry-hooks", "key": "webhook-secrets"}
    assert "WEBHOOK" not in str(container(render(), part))


@needs_helm
def test_chart_lets_nodes_reach_receivers_and_know_their_authority(everything):
    # Given
    mounts = {m["mountPath"]: m["name"] for m in container(everything, "worker")["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(everything, "worker")["volumes"]}
    # Then
    folder, _, name = environment(everything, "worker")["FERRY_WEBHOOK_CA_FILE"].rpartition("/")
    secret = volumes[mounts[folder]]["secret"]
    assert secret["secretName"] == "ferry-hooks"
    assert [item["path"] for item in secret["items"]] == [name]
    # And what it signs with is in no file
    assert [item["key"] for item in secret["items"]] == ["ca.crt"]
    # And public addresses are reached without downloads of archives, the others by name
    quiet = {**EVERYTHING["networkPolicy"], "archiveDownloads": False}
    rules = egress(render({**EVERYTHING, "networkPolicy": quiet}))
    assert rules[-1]["ports"] == [{"port": 443, "protocol": "TCP"}]
    [public, *named] = rules[-1]["to"]
    assert public["ipBlock"]["cidr"] == "0.0.0.0/0"
    assert "10.0.0.0/8" in public["ipBlock"]["except"]
    assert named == EVERYTHING["networkPolicy"]["webhooks"]["to"]
    # And without webhooks there is no such way
    assert egress(render({"networkPolicy": quiet})) == rules[:-1]


def egress(manifests):
    return find(manifests, "NetworkPolicy", f"{NAME}-worker")["spec"]["egress"]


@needs_helm
def test_chart_probes_that_the_ingress_lives_and_no_model(manifests):
    # A model that has no worker yet, or none any more, must not take the others with it.
    found = container(manifests, "ingress")
    probes = [found[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {probe["path"] for probe in probes} == {"/livez"}
    assert {probe["port"] for probe in probes} <= {port["name"] for port in found["ports"]}


@needs_helm
def test_chart_leaves_the_number_of_pods_to_the_autoscaler(everything):
    # Given
    plain = render({"ingress": {"autoscaling": {"enabled": False}}})
    # Then: each part has a number, or an autoscaler, and not both
    for part in PARTS:
        assert "replicas" not in find(everything, "Deployment", f"{NAME}-{part}")["spec"]
        assert find(plain, "Deployment", f"{NAME}-{part}")["spec"]["replicas"] >= 1
    kinds = {manifest["kind"] for manifest in everything}
    assert {"HorizontalPodAutoscaler", "ScaledObject"} <= kinds
    assert not {"HorizontalPodAutoscaler", "ScaledObject"} & {m["kind"] for m in plain}


@needs_helm
def test_chart_asks_for_gpus_when_told_to(everything):
    assert "nvidia.com/gpu" not in str(container(render(), "worker")["resources"])
    resources = container(everything, "worker")["resources"]
    assert {
        "name": "NVIDIA_DRIVER_CAPABILITIES",
        "value": "compute,utility,video",
    } in container(everything, "worker")["env"]
    assert resources["limits"]["nvidia.com/gpu"] == 2
    assert resources["limits"]["memory"] == "8Gi"


@needs_helm
def test_chart_installs_the_same_rules_and_dashboard(everything):
    # Given
    rules = yaml.safe_load((ROOT / "dashboards/prometheus/torchferry.rules.yml").read_text())
    dashboard = json.loads((ROOT / "dashboards/grafana/torchferry.json").read_text())
    # Then
    assert find(everything, "PrometheusRule", NAME)["spec"] == rules
    configured = find(everything, "ConfigMap", f"{NAME}-dashboard")
    assert json.loads(configured["data"]["torchferry.json"]) == dashboard


@needs_helm
def test_chart_scrapes_the_port_of_the_metrics(everything):
    # Given
    [endpoint] = find(everything, "ServiceMonitor", NAME)["spec"]["endpoints"]
    selector = find(everything, "ServiceMonitor", NAME)["spec"]["selector"]["matchLabels"]
    matching = [
        m
        for m in everything
        if m["kind"] == "Service" and selector.items() <= m["metadata"]["labels"].items()
    ]
    # Then: one Service only, whose name becomes the label `job` that the scaler's query asks for
    assert [m["metadata"]["name"] for m in matching] == [f"{NAME}-metrics"]
    assert endpoint["port"] in {port["name"] for port in matching[0]["spec"]["ports"]}
    [trigger] = find(everything, "ScaledObject", f"{NAME}-worker")["spec"]["triggers"]
    assert f'job="{NAME}-metrics"' in trigger["metadata"]["query"]
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


@needs_helm
@pytest.mark.parametrize(
    "values",
    [
        {"worker": {"autoscaling": {"enabled": True}}},  # which Prometheus?
        {"worker": {"autoscaling": {"minReplicas": 0}}},
        {"redis": {"existingSecret": ""}},
        {"config": {"redis_url": "redis://h"}},
        {"config": {"probe_dir": "/x"}},
        {"ingress": {"drainTimeoutSecond": 8}},
        {"ingress": {"drainTimeoutSeconds": 0.5}},
        {"ingress": {"service": {"type": "ExternalName"}}},
        {"ingress": {"probes": {"readinessPath": "/ping"}}},
        {"networkPolicy": {"redis": {"ports": []}}},
        {"worker": {"gpu": {"count": -1}}},
        {"modelStore": {"size": "much"}},
        {"modelStore": {"fetch": ["model.mar"]}},
        {"config": {"webhook_secrets": "whsec_in_the_open"}},
    ],
    ids=str,
)
def test_chart_refuses_values_that_cannot_work(values):
    with pytest.raises(Refused):
        render(values)


@needs_helm
def test_chart_makes_what_kubernetes_accepts(manifests):
    # Given what is Kubernetes' own
    own = [m for m in manifests if m["apiVersion"].count(".") == 0 or "k8s.io" in m["apiVersion"]]
    assert len(own) >= 10
    # When / Then
    validate(own)


@needs_helm
def test_chart_is_packaged_with_what_it_links_to(tmp_path):
    # When
    with tarfile.open(package(tmp_path)) as archive:
        names = ("files/torchferry.rules.yml", "files/torchferry.json")
        members = [archive.getmember(f"torchferry/{name}") for name in names]
    # Then: as files, for links would lead nowhere
    assert all(member.isfile() and member.size > 1000 for member in members)
