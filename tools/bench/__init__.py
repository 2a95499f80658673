"""What `make bench` compares, one part a module."""
