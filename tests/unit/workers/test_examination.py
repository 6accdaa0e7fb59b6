"""What `ferry doctor` says of archives before they are deployed."""

import io
import json
import sys
from types import ModuleType

import pytest
import torch
from click.testing import CliRunner

from ferry.commands.doctor import doctor
from tests.unit.models import MODEL_SOURCE, Pooled, Touch, manifest, saved
from tests.unit.workers.archives.archives import write_zip
from workers.examination import examine

CLASS = """
from ts.torch_handler.base_handler import BaseHandler
class Own(BaseHandler):
    def preprocess(self, data): return data
"""


def diagnose(folder, files, **model):
    """Part, verdict and text of every finding about an archive of these files."""
    path = write_zip(folder / "model.mar", files, manifest(**model))
    return [(one.part, one.verdict, one.text) for one in examine(path).findings]


def of_verdict(verdict, findings):
    return [text for _, found, text in findings if found == verdict]


def test_good_archive_has_no_problems(tmp_path):
    # Given
    files = {
        "own.py": CLASS,
        "net.py": MODEL_SOURCE.format(classes=2),
        "w.pth": saved(Pooled(2).state_dict()),
        "model-config.yaml": "minWorkers: 1\nmaxWorkers: 2\nhandler: {top_k: 3}",
    }
    # When
    found = diagnose(
        tmp_path,
        files,
        handler="own.py",
        modelFile="net.py",
        serializedFile="w.pth",
        configFile="model-config.yaml",
    )
    # Then
    assert {verdict for _, verdict, _ in found} == {"ok"}
    assert [part for part, _, _ in found] == [
        "archive",
        "manifest",
        "handler",
        "weights",
        "model-config",
    ]


def test_file_that_is_no_archive_is_the_only_finding(tmp_path):
    # Given
    path = tmp_path / "model.mar"
    path.write_bytes(b"none")
    # When
    report = examine(path)
    # Then
    (only,) = report.findings
    assert only.part == "archive"
    assert "not a zip" in only.text
    assert not report.will_run


PASSES = "def handle(data, context): pass"
HANDLERS = {
    "syntax": ("own.py", "def handle(data, context)\n  pass", "own.py, line 1: not Python"),
    "no entry": ("own.py", "x = 1", "own.py needs a function handle(data, context), not async"),
    "coroutine": ("own.py", f"async {PASSES}", "own.py needs a function handle(data, context)"),
    "left out": (
        "own.py",
        f"import ts.torch_handler.dali_handler\n{PASSES}",
        "ts.torch_handler.dali_handler is not part of torchferry, which leaves out NVIDIA DALI",
    ),
    "no module": (
        "own.py",
        f"import ts.sevices\n{PASSES}",
        "imports ts.sevices: No module named 'ts.sevices'",
    ),
    "no name": (
        "own.py",
        f"from ts.context import Contxt\n{PASSES}",
        "imports ts.context: it has no Contxt",
    ),
    "not installed": (
        "own.py",
        f"import no_such_package.sub\n{PASSES}",
        "imports no_such_package, which is not installed here; install it on the nodes",
    ),
    "nowhere": ("nowhere", PASSES, "nowhere is neither a file of the archive nor built in"),
    "left out itself": (
        "vllm_handler",
        PASSES,
        "the built-in handler vllm_handler: ts.torch_handler.vllm_handler is not part of",
    ),
    "unnamed": ("", PASSES, "the manifest names none"),
}


@pytest.mark.parametrize(("handler", "source", "expected"), HANDLERS.values(), ids=HANDLERS)
def test_handler_that_cannot_be_imported_is_a_problem(handler, source, expected, tmp_path):
    # When
    texts = of_verdict("problem", diagnose(tmp_path, {"own.py": source}, handler=handler))
    # Then
    assert any(expected in text for text in texts)


def test_script_that_runs_is_no_module_to_import(tmp_path, monkeypatch):
    # Given a module that came from no import, as `__main__`
    monkeypatch.setitem(sys.modules, "script", ModuleType("script"))
    # When
    found = diagnose(tmp_path, {"own.py": f"import script\n{PASSES}"}, handler="own.py")
    # Then
    [text] = of_verdict("problem", found)
    assert text.startswith("own.py, line 1: imports script, which is not installed here")


def test_nothing_of_the_archive_is_executed(tmp_path, monkeypatch):
    # Given a handler and weights that would leave a trace
    trace = tmp_path / "trace"
    source = f"open({str(trace)!r}, 'w')\ndef handle(data, context): pass"
    files = {"own.py": source, "net.py": source, "w.pth": saved(Touch(trace))}
    # When
    found = diagnose(tmp_path, files, handler="own.py", modelFile="net.py", serializedFile="w.pth")
    # Then
    assert not trace.exists()
    assert "own" not in sys.modules
    assert "w.pth holds more than weights (" in of_verdict("note", found)[0]


OWN_LOADING = f"{CLASS}    def _load_torchscript_model(self, path): return torch.load(path)"


@pytest.mark.parametrize(
    ("source", "model_file", "verdict", "expected"),
    [
        (CLASS, {"modelFile": "net.py"}, "problem", "save it with"),
        (OWN_LOADING, {"modelFile": "net.py"}, "note", "runs what is in it"),
        (OWN_LOADING, {}, "note", "runs what is in it"),
    ],
)
def test_checkpoint_of_more_than_weights_is_refused_only_where_it_is_read_so(
    source, model_file, verdict, expected, tmp_path
):
    # Given
    net = MODEL_SOURCE.format(classes=2)
    files = {"own.py": source, "net.py": net, "w.pt": saved(Pooled(2))}
    # When
    found = diagnose(tmp_path, files, handler="own.py", serializedFile="w.pt", **model_file)
    # Then
    [(found_verdict, text)] = [(one[1], one[2]) for one in found if one[0] == "weights"]
    assert found_verdict == verdict
    assert text.startswith("w.pt holds more than weights (tests.unit.models.Pooled)")
    assert expected in text


def test_requirements_are_read_and_not_installed(tmp_path):
    # Given
    source = "import no_such_package\ndef handle(data, context): pass"
    files = {"own.py": source, "requirements.txt": "no-such-package==1\nother>2"}
    model = {"handler": "own.py", "requirementsFile": "requirements.txt"}
    # When
    found = diagnose(tmp_path, files, **model)
    # Then
    missing = "own.py, line 1: imports no_such_package, which is not installed here; "
    assert "is installed only where install_py_dep_per_model=true" in of_verdict("note", found)[0]
    [text] = of_verdict("problem", found)
    assert text.startswith(f"{missing}install it on the nodes, or name it in a requirements.txt")
    report = examine(tmp_path / "model.mar", is_installing=True)
    texts = [finding.text for finding in report.findings]
    assert report.will_run
    assert "requirements.txt installs no-such-package==1, other>2" in texts
    assert f"{missing}perhaps requirements.txt brings it" in texts


CONFIG = {
    "unknown": ("batchsize: 4", "note", "batchsize is unknown and only reaches the handler; did"),
    "type": ("batchSize: four", "note", "batchSize: 'four' is ignored, it should be of type int"),
    "no effect": ("useVenv: true", "note", "useVenv has no effect"),
    "parallel": ("parallelType: pp", "problem", "parallelType: pp has no counterpart"),
}


@pytest.mark.parametrize(("text", "verdict", "expected"), CONFIG.values(), ids=CONFIG)
def test_config_key_that_does_not_count_is_told(text, verdict, expected, tmp_path):
    # Given
    files = {"own.py": "def handle(data, context): pass", "c.yaml": text}
    # When
    found = diagnose(tmp_path, files, handler="own.py", configFile="c.yaml")
    # Then
    (told,) = [one for one in found if one[0] == "model-config"]
    assert told[1] == verdict
    assert expected in told[2]


def test_command_prints_json_for_machines(tmp_path):
    # Given
    torch.save({}, buffer := io.BytesIO())
    path = write_zip(
        tmp_path / "m.mar",
        {"own.py": "def handle(d, c): pass", "requirements.txt": "a", "w.pt": buffer.getvalue()},
        manifest(handler="own.py", requirementsFile="requirements.txt"),
    )
    config = tmp_path / "config.properties"
    config.write_text("install_py_dep_per_model=true\n")
    # When
    told = CliRunner().invoke(doctor, [str(path), "--json", "--config", str(config)])
    # Then
    record = json.loads(told.stdout)
    assert record["willRun"] is True
    assert record["modelName"] == "m"
    assert {
        "part": "requirements",
        "verdict": "ok",
        "text": "requirements.txt installs a",
    } in record["findings"]
