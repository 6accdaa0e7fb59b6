"""Claims requests, waits for them, and replies."""
