"""`python -m llm_magic.bench`: the command line, and the worker processes of a run."""

from .command import main

raise SystemExit(main())
