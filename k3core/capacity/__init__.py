"""Capacity: what a request costs in bytes, from published model sizes."""
