"""Model files: containers (gguf, safetensors), their names in Hugging Face's terms, and loading."""
