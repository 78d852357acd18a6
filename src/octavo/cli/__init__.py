"""Commands. Each lives in its own file and is imported only when it runs."""
