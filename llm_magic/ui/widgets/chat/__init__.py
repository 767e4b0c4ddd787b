"""The chat widget."""
