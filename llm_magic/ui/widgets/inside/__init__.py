"""Live views of a model's inside."""
