"""How long a step takes: predicted, and measured by a trace."""
