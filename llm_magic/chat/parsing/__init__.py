"""Generated tokens -> answer, reasoning and tool calls."""
