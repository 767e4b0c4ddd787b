"""Encoders (BERT and its kin): a text in, a vector of each of its tokens out."""
