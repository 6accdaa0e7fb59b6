"""Dashboard and alerts: what they name exists, what they say is there to be read."""

import itertools
import json
import re
import subprocess

import pytest

from batching.errors import ServeError
from batching.models.statuses import WorkerState
from benchmarks.pictures import PANELS, UNITS
from benchmarks.servers.prometheus import Prometheus
from ingress.metrics.ingress_metrics import FULL, LATE
from ingress.rest.metrics_api import EVENTS, WEBHOOK_OUTCOMES
from tests.deploy.chart import PROMTOOL, ROOT, needs_prometheus
from tests.deploy.expressions import (
    DASHBOARD,
    RULES,
    TARGET_LABELS,
    alerts,
    all_expressions,
    groupings,
    panel_expressions,
    panels,
    selectors,
)
from tests.support import eventually

OPERATIONS = (ROOT / "docs/operations.md").read_text()
RULES_TEST = ROOT / "tests/deploy/alerts_test.yml"
TITLES = {title for title, _ in panel_expressions()}
ALERTS = [pytest.param(rule, id=rule["alert"]) for rule in alerts()]


def subclasses(kind):
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


# What a label may say, where a test's traffic does not bring all of it.
VOCABULARY = {
    "reason": {kind.reason for kind in subclasses(ServeError)},
    "state": {state.value for state in WorkerState},
    "event": set(EVENTS),
    "release": {FULL, LATE},
    "code": {"4..", "5.."},
    "model": {"$model"},
    "job": {"$job"},
    "outcome": set(WEBHOOK_OUTCOMES),
}


@pytest.mark.slow
def test_every_metric_and_label_that_is_watched_is_exported(exported):
    # Given every panel and alert
    for name, expression in all_expressions():
        asked = selectors(expression)
        assert asked, f"{name} asks for nothing: {expression}"
        known = set(TARGET_LABELS)
        # Then each metric is there, with the labels by which it is picked
        for selector in asked:
            assert selector.metric in exported.labels, f"{name}: no metric {selector.metric}"
            labels = set(exported.labels[selector.metric])
            known |= labels
            assert set(selector.values) <= labels | TARGET_LABELS, f"{name}: {selector}"
        # And with those by which it is grouped
        assert groupings(expression) <= known, f"{name}: {groupings(expression) - known}"


@pytest.mark.parametrize(("name", "expression"), all_expressions(), ids=itertools.count())
def test_values_that_are_watched_for_can_occur(name, expression):
    for selector in selectors(expression):
        for label, values in selector.values.items():
            assert set(values) <= VOCABULARY[label], f"{name}: {selector}"


def test_metrics_of_redis_are_not_summed_over_ingresses():
    # Given what every ingress tells alike
    shared = r"(?:rate\(|increase\()?ferry_(?:queue_(?!wait)|jobs|webhooks|workers|nodes|redis)"
    for name, expression in all_expressions():
        # Then no expression adds it up
        assert not re.search(rf"sum(?: by \([^)]*\))? ?\({shared}", expression), name


@needs_prometheus
@pytest.mark.slow
def test_everything_that_is_asked_for_is_promql(server, exported, tmp_path):
    assert exported.labels
    target = server.metrics.removeprefix("http://")
    with Prometheus(tmp_path, target, {"namespace": "ml", "job": "ferry"}) as prometheus:
        # Given a Prometheus that has seen the traffic
        eventually(lambda: prometheus.query("ferry_redis_up"), 10)
        for name, expression in all_expressions():
            # When it is asked as Grafana asks, for one job and all models
            asked = expression.replace("$job", "ferry").replace("$model", ".*")
            found = prometheus.query(asked.replace("$__rate_interval", "1m"))
            # Then it understands, and gauges have values
            if "rate(" not in asked and "increase(" not in asked and name in TITLES:
                assert found, f"{name}: {asked}"


# --- dashboard


def test_dashboard_can_be_used_with_any_prometheus_and_one_model():
    # Given
    document = json.loads(DASHBOARD.read_text())
    variables = {variable["name"]: variable for variable in document["templating"]["list"]}
    # Then
    assert list(variables) == ["datasource", "job", "model"]
    assert variables["datasource"]["type"] == "datasource"
    assert variables["model"]["includeAll"]
    assert document["schemaVersion"] >= 41
    by_title = {panel["title"]: panel for panel in panels()}
    # And docs/images/dashboard.png has panels of it, in units that its drawing knows
    drawn = [by_title[title]["fieldConfig"]["defaults"]["unit"] for title in PANELS]
    assert set(drawn) <= UNITS.keys()
    # And
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    for title, expression in panel_expressions():
        for selector in selectors(expression):
            # Redis and nodes belong to no model.
            is_shared = selector.metric.startswith(("ferry_redis_", "ferry_nodes"))
            expected = {"job"} if is_shared else {"job", "model"}
            assert expected <= set(selector.values), f"{title}: {selector.metric}"


# --- alerts


@pytest.mark.parametrize("rule", ALERTS)
def test_alert_says_what_is_wrong_and_where_to_read_on(rule):
    # Given
    notes = rule["annotations"]
    path, _, anchor = notes["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", OPERATIONS, re.MULTILINE)
    # Then
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert notes["summary"]
    assert notes["description"].endswith(".")
    assert path == "docs/operations.md"
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
    # And its text names only labels that it has
    named = set(re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]))
    assert named <= groupings(rule["expr"])


def test_every_alert_is_explained_and_seen_to_fire():
    # Given
    names = sorted(rule["alert"] for rule in alerts())
    fired = re.findall(r'labels: .*alertname="(\w+)"', RULES_TEST.read_text())
    # Then
    assert sorted(re.findall(r"^### (Ferry\w+)$", OPERATIONS, re.MULTILINE)) == names
    assert sorted(set(fired)) == names


@needs_prometheus
@pytest.mark.parametrize("words", [("check", "rules", RULES), ("test", "rules", RULES_TEST)])
def test_rules_are_valid_and_fire_only_when_they_should(words):
    done = subprocess.run(
        [PROMTOOL, *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- the guide


def test_guide_says_where_to_read_on_for_each_error_of_the_server():
    # Given the table of words, and the errors that clients cannot mend
    table = OPERATIONS.partition("## A client complains")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    named = {pair for row in rows for pair in codes_and_words(row)}
    errors = {(str(kind.status), kind.reason) for kind in subclasses(ServeError)}
    # Then
    assert {pair for pair in errors if pair[0] >= "500"} <= named
    # And it names no alert that does not exist
    headings = set(re.findall(r"^### (Ferry\w+)$", OPERATIONS, re.MULTILINE))
    assert set(re.findall(r"Ferry\w+", table)) <= headings


def codes_and_words(row):
    """Yields (status, word) of each in the first cell; a status counts for the words behind it."""
    status = ""
    for number, word in re.findall(r"(\d{3})|`(\w+)`", row.split("|")[1]):
        status = number or status
        if word:
            yield status, word


def test_guide_names_panels_and_sections_that_there_are():
    # Given what the alerts' texts quote
    alerts_text = OPERATIONS.partition("## Alerts, and what to do")[2].partition("\n## ")[0]
    quoted = {" ".join(words.split()) for words in re.findall(r'"([A-Z][\w\s]+)"', alerts_text)}
    # Then
    assert "Busy workers" in quoted
    assert quoted <= TITLES | set(re.findall(r"^#+ (.+)$", OPERATIONS, re.MULTILINE))


@pytest.mark.slow
def test_metrics_that_documents_name_are_exported(exported):
    # Given `ferry_x`, `ferry_x_total{way}` or `ferry_x 0`; a histogram by its name alone
    several = {"ferry_ingress_processes"}  # only where several share a host's ports
    families = several | {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported.labels}
    pages = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    named = {
        path.name: set(re.findall(r"`(ferry_[a-z_]+)(?:`|\{| \d)", text))
        for path, text in pages.items()
    }
    # Then
    assert len(named["operations.md"]) > 10
    assert {page: names - families for page, names in named.items() if names - families} == {}


def test_log_lines_that_the_guide_names_are_written():
    # Given the table of log lines
    table = OPERATIONS.partition("## Log lines to know")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    sources = [
        path.read_text()
        for package in ("batching", "ingress", "workers", "compat")
        for path in (ROOT / package).rglob("*.py")
    ]
    # Then
    assert len(lines) > 10
    for line in lines:
        assert any(line in source for source in sources), line
