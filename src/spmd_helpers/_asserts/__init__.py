"""Asserts about arrays and about compiled programs, in a reader's words.

Imports what is below.
"""
