"""What measures GPUs and asks compilers, and the page of what was measured."""
