"""The rivals on one stream: each at the best of its own grid, chosen on some seeds and reported on others."""
