"""What every room uses: words for numbers, tables, names, colors.

Imports the standard library and `_errors`.
"""
