"""Executors run Programs. They know ops and memory, never a model or a request."""
