"""Parts that several tests use: toy models, fakes, cut texts, schemas, oracles, HTML audit."""
