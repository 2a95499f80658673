"""Checks what the book says: tests, notebooks, a browser, stored texts, grade ids."""
