"""Learners of RLlib with generate-and-test, and what they are made of."""
