"""ModelSpec: what stays of it when it is written, read and scaled."""

import datetime

from batching.models.entry import ModelEntry
from batching.models.spec import ModelSpec
from tests.support import make_spec


def in_registry(spec: ModelSpec) -> ModelSpec:
    """The spec as another process reads it there."""
    entry = ModelEntry(spec.model_version, {spec.model_version: spec})
    return ModelEntry.from_json(entry.to_json()).versions[spec.model_version]


def test_spec_is_the_same_after_json():
    # Given
    config = {"handler": {"profile": True}}
    spec = make_spec(device_ids=(0, 1), use_job_ticket=True, config=config)
    # When
    received = in_registry(spec)
    # Then
    assert received == spec
    assert received.device_ids == (0, 1)


def test_spec_keeps_fields_of_a_later_version():
    # Given
    record = make_spec().to_record() | {"colour": "green"}
    # When
    received = ModelSpec.from_record(record)
    # Then: no worker has to be started anew for what it does not know
    assert received.is_same_registration(make_spec())
    assert received.scaled(2, 3).to_record()["colour"] == "green"


def test_spec_of_an_earlier_version_has_the_defaults_of_what_it_does_not_know():
    # Given
    spec = make_spec(batch_size=8)
    record = spec.to_record()
    del record["use_job_ticket"], record["device_ids"]
    # When / Then
    assert ModelSpec.from_record(record) == spec


def test_spec_becomes_json_when_its_config_holds_a_date():
    # Given what yaml.safe_load makes of `released: 2024-05-17`
    spec = make_spec(config={"released": datetime.date(2024, 5, 17)})
    # When
    received = in_registry(spec)
    # Then
    assert received.config == {"released": "2024-05-17"}
