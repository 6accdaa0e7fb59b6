"""Handwritten digits: a small network, its archive, and clients that ask it all at once.

python -m examples.digits.build --model-store model_store     trains, writes digits.mar
python -m examples.digits.demo                                asks a running server
"""
