from dataclasses import replace

from batching.store.clients import connect
from batching.store.registry.startup_marks import StartupMarks
from ingress.models.registrar import Registrar
from ingress.models.startup_models import StartupLoader


def load(ingress, *, is_awaited=False, **settings):
    """Starts an ingress with these settings; returns what failed."""
    services = replace(ingress.services, settings=replace(ingress.services.settings, **settings))
    with connect(services.settings.redis_url) as client:
        marks = StartupMarks(client)
        return StartupLoader(services, Registrar(services), marks, is_awaited=is_awaited).load()
