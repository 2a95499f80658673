"""JAX's sharding errors in a reader's terms: what is read, the rules, the words.

Imports `_core`.
"""
