"""Answers requests about jobs: predictions whose result the client fetches later."""
