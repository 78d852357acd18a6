"""The engine: requests, scheduler, KV book-keeping, the step loop. Knows no model, no kernel, no HTTP."""
