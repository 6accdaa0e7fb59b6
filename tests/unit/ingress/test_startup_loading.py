from dataclasses import replace

import pytest

from ingress.registrar import Registrar
from ingress.startup_models import load_models


@pytest.mark.usefixtures("node")
def test_startup_registers_what_it_can_and_says_what_failed(ingress):
    # Given
    ingress.archives.add("echo.mar", "echo")
    settings = replace(ingress.services.settings, load_models="echo.mar,mine=echo.mar,lost.mar")
    services = replace(ingress.services, settings=settings)
    # When
    failures = load_models(services, Registrar(services))
    # Then
    assert failures == [{"model": "lost.mar", "error": "Model not found at: lost.mar"}]
    assert sorted(ingress.registry.snapshot()) == ["echo", "mine"]
    spec = ingress.registry.resolve("mine", None)
    assert (spec.min_worker, spec.is_loaded_at_startup) == (1, True)


@pytest.mark.usefixtures("node")
def test_startup_keeps_what_is_registered_already(ingress):
    # Given
    ingress.archives.add("echo.mar", "echo")
    ingress.register("echo", batch_size=7)
    services = replace(
        ingress.services, settings=replace(ingress.services.settings, load_models="echo.mar")
    )
    # When / Then
    assert load_models(services, Registrar(services)) == []
    assert ingress.registry.resolve("echo", None).batch_size == 7
