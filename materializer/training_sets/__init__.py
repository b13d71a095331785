"""Training data: holdout editions, preference pairs, demonstrations, the probe, and the facts for the choice of a method."""
