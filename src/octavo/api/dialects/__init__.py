"""Other APIs than OpenAI's: bodies in their terms to bodies in ours, and the shape of their errors."""
