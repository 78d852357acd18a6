"""A model as data: a straight line of ops over named buffers. Does not compute."""
