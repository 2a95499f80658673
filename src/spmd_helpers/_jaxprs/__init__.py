"""A traced function: followed, what it asks for, what differs inside a shard_map.

Imports `_core` and `_shardings`.
"""
