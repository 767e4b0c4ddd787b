"""Decisions with probabilities, how well they are calibrated, and evaluations made of them."""
