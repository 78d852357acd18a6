"""Book-keeping of the KV cache: pool, chain of hashes, tables per request. Never touches KV memory."""
