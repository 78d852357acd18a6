"""Asked -> plan: what the user wrote becomes, in one pure step, what will run."""
