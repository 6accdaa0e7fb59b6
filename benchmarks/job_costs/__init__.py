"""Measures what jobs cost: the requests beside them, the ingress, and Redis."""
