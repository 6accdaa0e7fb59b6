"""Serves models from files as people write them: `ferry serve`, `ferry archive`, `ferry.local`."""
