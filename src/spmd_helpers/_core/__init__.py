"""What every room uses: words for numbers, tables, names, versions, colors.

Imports the standard library and `_errors`.
"""
