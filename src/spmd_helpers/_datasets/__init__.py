"""Digits and a text to train on, both in this folder.

Imports `_errors` and `_runtime`; NumPy when digits are loaded, pooch for a download.
"""
