"""All claims of the paper, by figure."""

from cbp_ray.figures import bit_flipping_claims, permuted_mnist_claims
from cbp_ray.figures.claims import Claim

CLAIMS: tuple[Claim, ...] = (*bit_flipping_claims.CLAIMS, *permuted_mnist_claims.CLAIMS)


def claims_of(figure: str) -> list[Claim]:
    """The claims that one figure supports."""
    return [claim for claim in CLAIMS if claim.figure == figure]
