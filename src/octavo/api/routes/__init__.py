"""HTTP routes, one file per family. A route parses, calls, answers; what it decides lives elsewhere."""
