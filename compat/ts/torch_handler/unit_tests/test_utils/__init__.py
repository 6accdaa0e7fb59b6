"""Stand-ins for tests of handlers."""
