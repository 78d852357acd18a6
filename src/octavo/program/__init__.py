"""Programs: op table, builder, checks, passes and the readable dump. Knows no model and no executor."""
