"""The older home of the streaming helper."""
