"""Starts, watches and restarts processes: the only code that knows every side."""
