"""`python -m cbp_ray` is the same program as `cbp-ray`."""

import sys
from collections.abc import Sequence

from cbp_ray.extras import MissingExtra, need


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; without the packages that it needs, one line says what to install."""
    try:
        need("service", "click", "rich")
    except MissingExtra as error:
        sys.stderr.write(f"cbp-ray: {error}\n")
        return 2
    from cbp_ray.cli.main import main as run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
