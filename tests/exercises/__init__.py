"""The checks of the exercises, and the answers that measure them."""
