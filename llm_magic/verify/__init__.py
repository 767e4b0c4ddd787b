"""Proof that a saved notebook holds what its models say: every reply is generated again.

Comes in: a notebook's file. Goes out: a report, cell by cell. It must not know how a reply is
drawn: whoever calls brings a function that draws one again.

In this package: notebook.py (cells and the records in their outputs), replay.py (one record
generated again and compared), finder.py (the model that a record names), report.py (what was
found), run.py (a whole notebook).
"""
