"""Answers what clients ask about jobs: predictions whose result they come for later."""
