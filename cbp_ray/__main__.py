"""`python -m cbp_ray` is the same program as `cbp-ray`."""

import sys

from cbp_ray.cli import main

if __name__ == "__main__":
    sys.exit(main())
