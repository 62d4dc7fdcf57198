"""The parts of the package that are installed on request: `cbp-ray[service]`, `cbp-ray[rllib]`, `cbp-ray[all]`."""

from importlib.util import find_spec

from cbp_ray.errors import InputError


class MissingExtra(InputError, ImportError):
    """A part of the package that is not installed; the message names what to install."""


def need(extra: str, *modules: str) -> None:
    """Checks that a part's packages are there.

    Raises:
      MissingExtra: one line with the command that installs it.
    """
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(f"{module}: is needed here and not installed; run: pip install 'cbp-ray[{extra}]'")
