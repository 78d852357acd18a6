"""From token ids to text: bytes, UTF-8, stop strings; one pipeline per choice."""
