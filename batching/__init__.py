"""The core: what a request is, how it waits, and how a batch forms. No HTTP, no torch.

A batch leaves by a pure decision (`policy`); `store` is the only folder that speaks Redis.
"""
