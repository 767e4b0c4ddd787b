"""What several tests share: toy models, fakes, cut texts, schemas, the oracle of the kernels."""
