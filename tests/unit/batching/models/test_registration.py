"""What a registration means, TorchServe's parameter rules included."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.errors import BadRequest, InvalidModel
from batching.models.registration import (
    ModelDefaults,
    bool_parameter,
    check_parameters,
    int_parameter,
    spec_from_registration,
)
from batching.models.spec import PARAMETERS, ArchiveInfo, VersionKey

ARCHIVE = ArchiveInfo("m.mar", "ab", "m", "1.0", "handler.py", "python", {"runtime": "python"}, {})


def register(parameters=None, defaults=None, **archive_changes):
    archive = replace(ARCHIVE, **archive_changes)
    return spec_from_registration(parameters or {}, archive, defaults or ModelDefaults())


def test_registration_takes_everything_from_the_archive_when_nothing_is_asked():
    spec = register()
    assert spec.key == VersionKey("m", "1.0")
    assert (spec.model_url, spec.handler, spec.runtime) == ("m.mar", "handler.py", "python")
    assert (spec.batch_size, spec.max_batch_delay_ms) == (1, 100)
    assert (spec.response_timeout_s, spec.startup_timeout_s) == (120, 120)
    assert (spec.min_worker, spec.max_worker) == (0, 0)
    assert (spec.job_queue_size, spec.queue_timeout_s) == (100, 120.0)
    assert (spec.client_timeout_ms, spec.max_retry_timeout_s) == (0, 300)
    assert (spec.batch_policy, spec.latency_slo_ms) == ("fixed", 0)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"batch_policy": "eager"}, "must be one of fixed, adaptive"),
        ({"defaults": "usual"}, r"defaults must be serving\."),
        ({"latency_slo_ms": "50"}, "with batch_policy=adaptive"),
        ({"batch_policy": "adaptive", "latency_slo_ms": "-1"}, "latency_slo_ms must be 0 or more"),
    ],
)
def test_registration_is_refused_when_it_cannot_be_kept(parameters, text):
    with pytest.raises(BadRequest, match=text):
        register(parameters)


SERVING = {"defaults": "serving"}


@pytest.mark.parametrize(
    ("parameters", "config", "defaults", "expected"),
    [
        ({}, {}, {}, (1, 8, "adaptive")),
        ({"batch_size": "2", "initial_workers": "0"}, {}, {}, (0, 2, "adaptive")),
        ({"batch_policy": "fixed"}, {}, {}, (1, 8, "fixed")),
        ({}, {"batchSize": 3, "batchPolicy": "fixed"}, {}, (1, 3, "fixed")),
        ({"batch_size": "2"}, {"batchSize": 3}, {}, (1, 2, "adaptive")),
        ({}, {"minWorkers": 4, "maxWorkers": 4}, {}, (4, 8, "adaptive")),
        ({}, {}, {"min_worker": 2}, (2, 8, "adaptive")),
        ({}, {}, {"min_worker": 0}, (1, 8, "adaptive")),
    ],
)
def test_serving_defaults_come_after_all_that_anybody_chose(parameters, config, defaults, expected):
    spec = register({**SERVING, **parameters}, ModelDefaults(parameters=defaults), config=config)
    assert (spec.min_worker, spec.batch_size, spec.batch_policy) == expected


def test_registration_prefers_parameters_to_the_archives_names():
    spec = register({"model_name": "other", "handler": "h.py:f", "runtime": "python3"})
    assert (spec.model_name, spec.handler, spec.runtime) == ("other", "h.py:f", "python3")
    with pytest.raises(InvalidModel, match=r"Model name is not defined\."):
        register(model_name="")


def test_timeouts_prefer_config_to_parameter_to_default():
    # Given
    parameters = {"response_timeout": "7", "startup_timeout": "8"}
    defaults = ModelDefaults({"response_timeout_s": 5, "startup_timeout_s": 6})
    # When
    from_config = register(parameters, defaults, config={"responseTimeout": 1})
    from_defaults = register({}, defaults)
    # Then: a config that does not mention one leaves the parameter be
    assert (from_config.response_timeout_s, from_config.startup_timeout_s) == (1, 8)
    assert (from_defaults.response_timeout_s, from_defaults.startup_timeout_s) == (5, 6)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"minWorkers": 2, "maxWorkers": 4}, (2, 4)),
        ({"minWorkers": 4, "maxWorkers": 2}, (3, 3)),
        ({"maxWorkers": 2}, (3, 3)),
        ({"minWorkers": "2", "maxWorkers": 4}, (3, 3)),
        ({}, (3, 3)),
    ],
)
def test_workers_come_from_config_only_when_it_makes_sense(config, expected):
    spec = register({"initial_workers": "3"}, config=config)
    assert (spec.min_worker, spec.max_worker) == expected


def test_version_may_name_its_build_or_be_left_out():
    assert register(model_version="").model_version == "1.0"
    assert register(model_version="1.0+cpu").model_version == "1.0+cpu"
    with pytest.raises(BadRequest, match="model version"):
        register(model_version="1.0 cpu")


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        *(("runtime", "LSP"), ("batch_size", 0)),
        *(("max_batch_delay", "-1"), ("queue_timeout", "-1")),
        *(("model_name", name) for name in ("../passwd", "{m:other}", "a\n", "m" * 129, "ⅿ")),
    ],
)
def test_registration_is_refused_when_no_archive_fits(parameter, value):
    # Before and after the archive is fetched
    for refuse in (check_parameters, register):
        with pytest.raises(BadRequest):
            refuse({parameter: value})


@pytest.mark.parametrize(
    "parameters",
    [
        {"latency_slo_ms": "5"},
        {"response_timeout": "0", "startup_timeout": "0"},
        {"initial_workers": "2000000000"},
    ],
)
def test_registration_is_refused_after_the_archive_when_that_could_have_helped(parameters):
    check_parameters(parameters)
    with pytest.raises(BadRequest):
        register(parameters)


INTEGERS = [one.word for one in PARAMETERS if one.kind is int]


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 10**20, 10**400], ids=range(4))
@pytest.mark.parametrize("name", INTEGERS)
def test_registration_is_refused_when_a_number_of_the_archive_is_no_java_int(name, number):
    text = f"^{name} must be from -2147483648 to 2147483647.$"
    with pytest.raises(BadRequest, match=text):
        register(config={name: number})
    with pytest.raises(BadRequest, match=text):
        register({}, ModelDefaults(model_settings={"m": {"1.0": {name: number}}}))
    with pytest.raises(BadRequest, match=r"^deviceIds must be"):
        register(config={"deviceIds": [0, number]})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("8", 8), ("-8", -8), (8, 8), ("2147483647", 2147483647)),
        *((text, 1) for text in ("2147483648", "9" * 5000, "8.0", "", "٨", True, None)),
    ],
)
def test_int_parameter_is_the_default_when_the_value_is_no_java_int(text, expected):
    assert int_parameter({"n": text}, "n", 1) == expected


@given(st.text())
def test_int_parameter_never_raises(text):
    assert isinstance(int_parameter({"n": text}, "n", 1), int)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("true", True), ("TRUE", True), (True, True), ("1", False), ("yes", False), ("", False)],
)
def test_bool_parameter_is_true_for_the_word_true_only(text, expected):
    assert bool_parameter({"b": text}, "b", default=not expected) is expected


def test_models_of_the_configuration_stand_between_archive_and_default():
    # Given
    configured = {
        "echo": {"1.0": {"batchSize": 4, "responseTimeout": 3, "minWorkers": 2, "maxWorkers": 5}}
    }
    defaults = ModelDefaults(model_settings=configured, handler="fallback")
    plain = {"model_name": "echo", "handler": ""}
    own = {**plain, "config": {"batchSize": 6}, "handler": "own.py"}
    # When
    by_configuration = register({"initial_workers": 1}, defaults, **plain)
    by_archive = register({}, defaults, **own)
    by_parameter = register({"batch_size": 9}, defaults, **own)
    other_version = register({}, defaults, **plain, model_version="2.0")
    # Then
    assert (by_configuration.batch_size, by_configuration.response_timeout_s) == (4, 3)
    assert (by_configuration.min_worker, by_configuration.max_worker) == (2, 5)
    assert (by_archive.batch_size, by_archive.response_timeout_s) == (6, 3)
    assert by_parameter.batch_size == 9
    assert other_version.batch_size == 1
    assert (by_configuration.handler, by_archive.handler) == ("fallback", "own.py")
