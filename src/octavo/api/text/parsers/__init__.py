"""What a model wrote, told apart: reasoning, content, tool calls. See docs/tools.md."""
