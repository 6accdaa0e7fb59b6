"""Decides which requests may reach the routes of a listener. Source: TorchServe 0.12.

Each listener has one authorizer. The router, the bridge and the Flask application all ask it, so
that no door is forgotten. Without a key file it lets everything pass.
"""

from collections.abc import Collection

from batching.errors import BadRequest
from ingress.access.key_file import KeyFile, KeyScope
from ingress.role import Role
from ingress.torchserve.routes import key_for

_REFUSED = "Token {} failed. Token either incorrect, expired, or not provided correctly"


class InvalidKey(BadRequest):
    """No key, or the wrong one. 400 rather than 401, as TorchServe's clients expect."""

    type = "InvalidKeyException"
    reason = "invalid_key"


class Authorizer:
    """Checks the token of each request to one listener; `is_closed` if tokens are asked for."""

    def __init__(self, keys: KeyFile | None, roles: Collection[Role]) -> None:
        self._keys = keys
        self._roles = frozenset(roles)
        self.is_closed = keys is not None

    def admit(self, method: str, path: str, authorization: str) -> None:
        """Checks that the request may pass.

        Args:
            method: HTTP method.
            path: percent-decoded.
            authorization: the header's value; empty when there is none.

        Raises:
            InvalidKey: it has not the key that this path needs.
        """
        if self._keys is None:
            return
        role = key_for(method, path, self._roles)
        if role and not self._keys.accepts(KeyScope(role), bearer_token(authorization)):
            raise InvalidKey(_REFUSED.format("Authorization"))


def require_api_key(keys: KeyFile, authorization: str) -> None:
    """Checks that this header has the API key.

    Raises:
        InvalidKey: it has another key, or none.
    """
    if not keys.accepts(KeyScope.API, bearer_token(authorization)):
        raise refused_renewal()


def refused_renewal() -> InvalidKey:
    """Returns the error of the token route, in TorchServe's words."""
    return InvalidKey(_REFUSED.format("Authentication"))


def bearer_token(authorization: str) -> str:
    """Returns the token of an Authorization header; without one, an empty text, which is no key."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme == "Bearer" else ""
