"""Serves TorchServe's REST API as a Flask application."""
