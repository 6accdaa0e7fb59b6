"""Has the core: what a request is, how it waits, and how a batch forms. No HTTP, no torch.

`policy` decides by pure functions when a batch leaves; only `store` speaks Redis.
"""
