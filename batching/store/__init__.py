"""Speaks Redis; no other folder does.

Ingresses, workers and nodes each have a folder for their side of the queue. What changes two keys
at once is a script in `scripts`, whose head is its contract.
"""
