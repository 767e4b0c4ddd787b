"""The same question for every row of a table: one answer per row, with its numbers and its error.

In this package: template.py (a row becomes messages), frames.py (pandas, polars and lists as rows,
answers as columns), cache.py (a file of finished answers), answers.py (what is known of a row),
run.py (many rows in flight), grid.py (several prompts side by side), mixin.py (`LLM.map`,
`LLM.grid`).
"""
