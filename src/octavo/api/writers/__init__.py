"""Events to bytes, one writer per dialect. A writer knows no engine and no text processing."""
