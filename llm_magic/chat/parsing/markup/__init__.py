"""Readers of tool-call markup over text that may still be arriving. See tags.py and tape.py."""
