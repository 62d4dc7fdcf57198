"""What ``cbp-ray bench`` runs, one module per benchmark; installed as ``cbp_ray_benchmarks``.

A benchmark module offers two functions, and ``cbp-ray bench NAME`` finds it by its file name:

- ``run() -> dict``: measure, and return plain numbers and strings (they are printed with ``--json``);
- ``render(result: dict) -> str``: the same result for a person to read.
"""
