"""`python -m llm_magic.bench`: the command line."""

from .command import main

raise SystemExit(main())
