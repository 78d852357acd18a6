"""Rivals on the same work: how to prepare their models, how to start them."""
