"""Beats for a node and its workers, and takes back what dead workers held."""
