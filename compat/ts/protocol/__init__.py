"""Has the streaming helper in its older place."""
