"""What measurements share: load, processor time, records and verdicts."""
