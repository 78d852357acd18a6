"""Bodies of requests: one normaliser, then pydantic models. Says what is accepted, refused and ignored."""
