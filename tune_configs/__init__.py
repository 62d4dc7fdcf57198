"""Sweep definitions, one YAML per figure, by problem. Data only; installed as ``cbp_ray_tune_configs``.

Read them with ``importlib.resources.files("cbp_ray_tune_configs")``, which works in a checkout and in a wheel alike.
"""
