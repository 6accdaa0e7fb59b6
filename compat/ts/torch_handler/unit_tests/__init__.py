"""What tests of handlers import."""
