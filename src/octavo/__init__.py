"""Octavo: an LLM inference and serving engine, fastest on ordinary CPUs."""

__version__ = "0.1.0"
