"""The explorers and the calculator; their JavaScript is in js/.

Imports what is below.
"""
