"""ModelSpec: what stays of it when it is written, read and scaled."""

import datetime

from batching.models.entry import ModelEntry
from batching.models.spec import ModelSpec
from tests.support import make_spec


def test_spec_keeps_fields_of_a_later_version():
    record = make_spec().to_record() | {"colour": "green"}
    received = ModelSpec.from_record(record)
    # Then: no worker has to be started anew for what it does not know
    assert received.is_same_registration(make_spec())
    assert received.scaled(2, 3).to_record()["colour"] == "green"


def test_spec_becomes_json_when_its_config_holds_a_date():
    # Given what yaml.safe_load makes of `released: 2024-05-17`
    spec = make_spec(config={"released": datetime.date(2024, 5, 17)})
    # When
    text = ModelEntry("1.0", {"1.0": spec}).to_json()
    # Then
    received = ModelEntry.from_json(text).versions["1.0"]
    assert received.config == {"released": "2024-05-17"}
