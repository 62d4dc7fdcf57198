"""The command line `cbp-ray`: one module per family of commands, and what they share."""

from cbp_ray.cli.main import main as main
