"""The users of deploy/redis/users.acl, with a password for tests."""

from pathlib import Path
from typing import Any

ACL_FILE = Path(__file__).parents[1] / "deploy/redis/users.acl"
# Name -> its rules.
USERS = {line.split()[1]: line.split()[2:] for line in ACL_FILE.read_text().splitlines()}
PASSWORD = "only-for-this-test"


def add_user(client: Any, name: str) -> None:
    """Gives the server behind this client the user."""
    client.execute_command("ACL", "SETUSER", name, "reset", *USERS[name], f">{PASSWORD}")
