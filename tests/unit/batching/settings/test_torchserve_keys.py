"""Keys of a configuration file that have no effect here."""

from batching.settings.loading import load_settings
from batching.settings.settings import Settings
from batching.settings.torchserve_keys import IGNORED


def test_keys_without_effect_are_named_and_nothing_else(tmp_path):
    # Given a file with each ignored key, and with an unknown one
    config = tmp_path / "config.properties"
    config.write_text("".join(f"{key}=x\n" for key in (*IGNORED, "of_tomorrow")))
    # When
    settings, without_effect = load_settings(config, {}, {})
    # Then
    assert without_effect == sorted([*IGNORED, "of_tomorrow"])
    assert settings == Settings()
