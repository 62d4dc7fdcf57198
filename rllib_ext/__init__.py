"""Continual Backprop for RLlib: the Slippery Ant environment and learners with generate-and-test."""
