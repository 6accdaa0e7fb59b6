"""What browsers are shown at the inference port: its models, batches and API document."""
