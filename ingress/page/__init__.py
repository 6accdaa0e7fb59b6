"""Shows browsers the models, batches and API document of the inference port."""
