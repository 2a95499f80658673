"""Figures of memory, trees, reshapes and rings."""
