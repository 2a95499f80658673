"""Grading for instructors: `python -m spmd_grading`, the add-on to nbgrader, courses.

A distribution of its own; it imports `spmd_exercises` and `spmd_helpers`, which know
nothing of it.
"""
