"""Runs many predictions from one file: OpenAI's files and batches, lines of which become jobs."""
