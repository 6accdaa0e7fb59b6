"""What handlers measure."""
