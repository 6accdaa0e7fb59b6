"""Models that show the whole way from training to a served answer."""
