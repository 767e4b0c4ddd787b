"""Python functions as tools: what the model is told, and how a call runs."""
