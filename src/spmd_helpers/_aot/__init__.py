"""Compiling ahead of time for devices that are absent: what TPUs and GPUs share.

The sizes and kinds of a mesh's axes, and the report on a program that is too large.

Imports `_core`, `_hlo` and `_hardware`.
"""
