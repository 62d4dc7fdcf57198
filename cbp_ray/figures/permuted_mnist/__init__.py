"""The figures about Permuted MNIST."""

from cbp_ray.figures.permuted_mnist.figures import FIGURES as FIGURES
