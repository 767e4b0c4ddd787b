"""How large a grammar may be: the compiler recurses on the native stack, and has no limit there.

A constraint beyond these limits is a SchemaError before anything is compiled.
"""

MAX_GRAMMAR = 500_000  # characters
MAX_BRACKETS = 50  # nested brackets of a rule
MAX_COUNT = 2_000  # of repetitions, and of nested ones multiplied; llama.cpp has the same limit
