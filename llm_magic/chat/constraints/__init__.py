"""JSON schema, regex, choices, grammar, tool calls -> token masks."""
