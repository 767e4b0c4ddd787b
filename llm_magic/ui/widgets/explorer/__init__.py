"""The reply explorer."""
