"""One rank's worker: slots, batches, the executor. Knows no queue, no client and no block policy."""
