"""Model files: headers first, bytes by memory map. Knows formats, not models."""
