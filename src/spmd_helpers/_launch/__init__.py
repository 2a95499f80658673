"""One program as several processes on this machine.

Imports `_core`.
"""
