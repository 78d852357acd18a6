"""Formats that a checkpoint describes itself, in the response_template of its tokenizer_config.json."""
