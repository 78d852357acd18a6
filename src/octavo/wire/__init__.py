"""What crosses a process border: message structs, codec, sockets. Knows no feature and no model."""
