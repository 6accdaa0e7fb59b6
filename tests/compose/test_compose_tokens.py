"""docker-compose.tokens.yml, by the commands that its head names."""

import json

import pytest

from tests.compose.stack import compose_command

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

TOKENS = "docker-compose.tokens.yml"


@pytest.fixture
def closed(stack):
    """The ingress asks for tokens; the keys by scope."""
    text = (stack.folder / TOKENS).read_text(encoding="utf-8")
    commands = "\n".join(line[6:] for line in text.splitlines() if line.startswith("#     "))
    files = f"{stack.environment['COMPOSE_FILE']}:{TOKENS}"
    commands = commands.replace("-f docker-compose.yml -f docker-compose.tokens.yml ", "")
    commands = commands.replace("docker compose", " ".join(compose_command()))
    stack.run(["bash", "-euo", "pipefail", "-c", commands], env={"COMPOSE_FILE": files})
    stack.wait_healthy()
    document = json.loads((stack.folder / "secrets" / "key_file.json").read_text())
    yield {scope: entry["key"] for scope, entry in document.items()}
    stack.restore()


def test_tokens_of_the_secret_file_open_what_they_are_for(stack, closed):
    def ask(path, key=""):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return stack.http.get(path, headers=headers, timeout=10).status_code

    # When
    mode = (stack.folder / "secrets").stat().st_mode
    # Then
    assert mode & 0o077 == 0, "other users of this machine can read the keys"
    assert ask(f"{stack.management}/models") == 400
    assert ask(f"{stack.management}/models", closed["inference"]) == 400
    assert ask(f"{stack.management}/models", closed["management"]) == 200
    assert ask(f"{stack.inference}/ping") == 400
    assert ask(f"{stack.inference}/ping", closed["inference"]) == 200
