"""What nodes remember of the registry outlives an emptied Redis."""

import fakeredis
import pytest

from batching.store import keys
from batching.store.registry.registry import Registry
from tests.support import make_spec
from workers.node.node import RegistryMemory

SPEC = make_spec()


class ForgetfulRedis(fakeredis.FakeRedis):
    """A client whose Redis is emptied right before one of its commands."""

    forgets_before = ""

    def execute_command(self, *command, **options):
        if command[0] == self.forgets_before:
            self.forgets_before = ""
            self.flushall()
        return super().execute_command(*command, **options)


@pytest.fixture
def client():
    return ForgetfulRedis(server=fakeredis.FakeServer())


@pytest.fixture
def registry(client):
    return Registry(client)


@pytest.fixture
def keeper(registry):
    """A node's, which knows of one model."""
    keeper = RegistryMemory(registry)
    keeper.look()
    registry.create(SPEC)
    keeper.look()
    return keeper


def test_emptied_redis_is_told_who_lives_before_it_is_told_what_is_registered(
    client, registry, keeper
):
    # Given
    known = []
    client.flushall()
    # When
    keeper.look(lambda: known.append(registry.snapshot()))
    # Then: between the two, a request waits instead of being refused
    assert known == [{}]
    assert registry.specs() == [SPEC]
    # When nothing was lost
    keeper.look(lambda: known.append("again"))
    # Then
    assert known == [{}]


def test_node_that_comes_first_and_knows_nothing_does_not_make_the_others_forget(
    client, registry, keeper
):
    # Given
    client.flushall()
    # When
    newcomer = RegistryMemory(registry)
    assert newcomer.look() == {}
    keeper.look()
    # Then
    assert registry.specs() == [SPEC]
    assert newcomer.look() == registry.snapshot()


@pytest.mark.parametrize("command", ["HGETALL", "GET"])
def test_redis_emptied_while_it_is_looked_at_is_told_too(client, registry, keeper, command):
    # Given
    client.forgets_before = command
    # When
    found = keeper.look()
    # Then
    assert found == registry.snapshot()
    assert registry.specs() == [SPEC]


def test_model_whose_record_cannot_be_read_any_more_stays_until_it_has_gone(
    client, registry, keeper
):
    # Given
    known = registry.snapshot()
    client.hset(keys.MODELS, SPEC.model_name, b"hello")
    # When / Then
    registry.remove_unreadable("another")
    assert [keeper.look(), keeper.look()] == [known, known]
    registry.remove_unreadable(SPEC.model_name)
    assert keeper.look() == {}
