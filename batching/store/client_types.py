"""The types of redis-py's clients, as this project uses them."""

from typing import Any

# redis-py types every answer as "bytes or str" and some methods not at all; here it is bytes.
Client = Any
AsyncClient = Any
