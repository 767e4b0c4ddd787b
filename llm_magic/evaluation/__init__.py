"""How right a model is, how well its probabilities hold, and how sure it is of an answer."""
