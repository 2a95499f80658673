"""The known errors, one module for each kind, and the table of them all."""
