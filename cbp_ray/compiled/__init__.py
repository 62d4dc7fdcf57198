"""Parts of the torch method compiled with Numba: measurements of generate-and-test, and the step of Adam."""
