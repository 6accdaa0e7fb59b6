"""Translates between HTTP and the queue's messages, in TorchServe's paths, texts and documents."""
