"""The list of packages, which pyproject.toml cannot express; everything else stands there.

`benchmarks/` and `tune_configs/` are folders of the repository, but must not take such common names in other
people's site-packages: they are installed as `cbp_ray_benchmarks` and `cbp_ray_tune_configs`, in editable installs
and wheels alike.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["cbp_ray", "cbp_ray.*", "rllib_ext", "rllib_ext.*"]),
        "cbp_ray_benchmarks",
        "cbp_ray_tune_configs",
    ],
    package_dir={"cbp_ray_benchmarks": "benchmarks", "cbp_ray_tune_configs": "tune_configs"},
    package_data={
        "cbp_ray": ["py.typed"],
        "rllib_ext": ["py.typed"],
        "cbp_ray_tune_configs": ["**/*.yaml"],
    },
)
