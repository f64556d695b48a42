"""Environment wrappers of our own."""
