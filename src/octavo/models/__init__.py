"""Model families: each file turns a configuration into a Program. Nothing here computes or reads weights."""
