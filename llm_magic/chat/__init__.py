"""Text and roles: templates, reasoning, tool calls, constraints, history.

Never tinygrad, never IPython.
"""
