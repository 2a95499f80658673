"""What this course adds to nbgrader; `nbgrader_config.py` puts it in its place."""
