"""Facts of the operating system. Knows nothing of Octavo."""
