"""What is too long for CI, on a real node: `make soak`."""
