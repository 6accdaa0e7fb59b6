from dataclasses import replace

from ingress.models.registrar import Registrar
from ingress.models.startup_models import StartupLoader
from tests.unit.ingress.sockets import changed


def load(ingress, *, is_awaited=False, **settings):
    """Starts an ingress with these settings; returns what failed."""
    services = changed(ingress.services, settings=replace(ingress.services.settings, **settings))
    return StartupLoader(services, Registrar(services), is_awaited=is_awaited).load()
