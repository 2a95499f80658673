"""Digits and a text to train on, both in this folder.

Imports `_core` and NumPy.
"""
