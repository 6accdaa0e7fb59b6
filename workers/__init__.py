"""Runs models: nodes, their worker processes, archives and handlers. Knows nothing of HTTP."""
