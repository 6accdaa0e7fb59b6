"""Reads the settings of every process, checks them, and reads and writes their files."""
