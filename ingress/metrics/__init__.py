"""Measures the ingress and renders /metrics."""
