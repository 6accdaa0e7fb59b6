"""Runs many inputs from one file, by OpenAI's API: a service that is a client of a server.

`main` starts it: `app` answers clients, `feeder` finds batches and has a `BatchRun` run each of
them. They meet in the `folder`; nothing is kept outside of its files.
"""
