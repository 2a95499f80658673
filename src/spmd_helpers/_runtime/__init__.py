"""The Python that a notebook runs in: is its JAX new enough, and what is missing?

Imports `_core` and `_errors`, and `packaging` inside functions.
"""
