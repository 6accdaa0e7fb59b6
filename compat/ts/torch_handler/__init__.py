"""Has the handlers that archives name instead of bringing their own."""
