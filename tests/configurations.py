"""Configurations: all that this repository has, and mistakes, for a machine that starts them."""

import re
from pathlib import Path

from tests.ports import free_ports

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "tests" / "torchserve_configs"
PORTS = {"inference_address": 8080, "management_address": 8081, "metrics_address": 8082}
_IN_PAGES = re.compile("^cat > config.properties <<'EOF'\n(.*?)^EOF$", re.MULTILINE | re.DOTALL)

# Lines, the row that must change because of them, and words of its text.
MISTAKES = [
    ("job_queue_size=many", "start", "job_queue_size='many' is not a whole number"),
    ('models={"m": 1}', "start", "models: write"),
    ('models={"m": {"1.0": {"batchSize": 0}}}', "model m 1.0", "batch_size must be 1 or more"),
    ("model_snapshot={}{", "model_snapshot", "model_snapshot cannot be understood"),
    (
        "disable_token_authorization=true\nenable_model_api=true\n"
        "management_address=http://0.0.0.0:8081",
        "start",
        "can run code here",
    ),
    ("management_address=http://0.0.0.0:8081", "ferry up --config", "can run code here"),
    ("inference_address=here", "start", "write http[s]://host:port or unix:/path"),
    ("max_request_size=$$NOT_SET$$", "start", "NOT_SET is not set"),
    ("service_envelope=xml", "start", "service_envelope='xml' is not one of"),
    ("model_store=/nowhere/at/all", "start", "is not a folder: /nowhere/at/all"),
    ("metrics_config=/nowhere/metrics.yaml", "start", "metrics_config: cannot read"),
    ("key_file=/nowhere/key_file.json", "start", "key_file=/nowhere/key_file.json"),
    (
        "management_address=https://127.0.0.1:8444\ncertificate_file=/dev/null\n"
        "private_key_file=/dev/null",
        "start",
        "no such file for https://: /dev/null",
    ),
    ("data_dir=/dev/null/data", "start", "/dev/null/data cannot be written"),
    ("allowed_urls=(", "start", "comma list of regular expressions"),
    ("redis_url=localhost", "start", "redis_url"),
    ("grpc_inference_port=7070", "grpc_inference_port", "use HTTP"),
    ("load_models=http://example.com/m.mar", "load_models", "is not in allowed_urls"),
]


# Others that do not start, and what does not matter to a start.
MORE = [
    "inference_address=http://192.0.2.1:8080",
    "metrics_address=http://no.such.host.invalid:8082",
    "management_address=unix:/dev/null/socket",
    "log_files=true\nlog_location=/dev/null/logs",
    "work_dir=/dev/null/work",
    "snapshot_file=/nowhere.cfg",
    "token_authorization=true\nkey_file=/dev/null",
    "enable_metrics_api=false",
]


def all_configurations() -> dict[str, str]:
    """Returns the text of each configuration, by a name."""
    files = [
        *EXAMPLES.glob("*.properties"),
        *(ROOT / "deploy").rglob("*.properties"),
        *(ROOT / "tests" / "conformance" / "cases").rglob("*.properties"),
    ]
    found = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    for page in (ROOT / "docs").glob("*.md"):
        for text in _IN_PAGES.findall(page.read_text()):
            found[page.name] = text
    return found | {lines: lines for lines in (*MORE, *(lines for lines, _, _ in MISTAKES))}


def on_this_machine(text: str, store: Path) -> str:
    """Returns the configuration with ports that are free, and this model store if it names one."""
    text = re.sub(r"^model_store=/home.*", f"model_store={store}", text, flags=re.MULTILINE)
    first, given = free_ports(len(PORTS)), {}

    def port_for(match: re.Match[str]) -> str:
        # Listeners that have one port go on to.
        given.setdefault(match[2], first + len(given))
        return f"{match[1]}{given[match[2]]}"

    text = re.sub(r"^(\w+_address=https?://\S*:)(\d+)", port_for, text, flags=re.MULTILINE)
    for key, port in PORTS.items():
        if not re.search(f"^{key}=", text, re.MULTILINE):
            given.setdefault(str(port), first + len(given))
            text += f"\n{key}=http://127.0.0.1:{given[str(port)]}"
    return f"{text}\n"
