"""The world of Slippery Ant: environment, friction, and env runners that know the global time-step."""
