"""Digits and a text to train on, both in this folder.

Imports `_errors`; NumPy when digits are loaded.
"""
