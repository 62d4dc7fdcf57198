"""Where units are measured: all sites of the layers that are treated, and which tap there is whose."""

import torch
from torch import Tensor

from cbp_ray.algorithm.watched_layer import Population, WatchedLayer
from cbp_ray.algorithm.watched_site import Scratch, WatchedSite
from cbp_ray.presets import Needs


class Taps:
    """The taps of all units, end to end, site by site. In a plain chain of layers, tap i is unit i."""

    def __init__(self, layers: list[WatchedLayer], needs: Needs, needs_mean: bool, scratch: Scratch) -> None:
        self.units = layers[-1].at.stop
        watched: dict[int, WatchedSite] = {}
        treated = {id(layer.units): layer for layer in layers}
        owners: list[int] = []
        for layer in layers:
            layer.sites = []
            for site in layer.units.sites:
                if id(site) not in watched:
                    start, number = len(owners), len(watched)
                    watched[id(site)] = WatchedSite(number, start, site, layer.name, layer.dtype, needs, needs_mean, scratch)
                    for owner in site.owners:
                        its_layer = None if owner is None else treated.get(id(owner[0]))
                        owners.append(-1 if owner is None or its_layer is None else its_layer.at.start + owner[1])
                layer.sites.append(watched[id(site)])
        self.sites = list(watched.values())
        self.plain = owners == list(range(self.units))
        """Whether tap i is unit i everywhere."""
        taps: list[list[int]] = [[] for _ in range(self.units)]
        for tap, unit in enumerate(owners):
            if unit >= 0:
                taps[unit].append(tap)
        for layer in layers:
            layer.taps = torch.tensor(taps[layer.at])
        self.count = len(owners)
        self.owners = torch.tensor(owners)
        """The unit of every tap; -1 where there is none that is treated."""
        self.owned = (self.owners >= 0).nonzero()[:, 0]

    def to(self, device: torch.device) -> None:
        """Follows the weights to another device."""
        self.owners, self.owned = self.owners.to(device), self.owned.to(device)

    def by_unit(self, of_taps: Tensor) -> Tensor:
        """The sum over the taps of each unit."""
        if self.plain:
            return of_taps
        return of_taps.new_zeros(self.units).index_add_(0, self.owners[self.owned], of_taps[self.owned])

    def by_tap(self, of_units: Tensor) -> Tensor:
        """What each tap's unit has; where there is none, what the first has."""
        return of_units if self.plain else of_units[self.owners.clamp(min=0)]

    def of(self, units: Population, index: Tensor | None = None) -> Tensor | slice:
        """The taps of some units, or of those at `index` among them."""
        if self.plain and index is None:
            return units.at
        if self.plain:
            assert index is not None
            return index + units.at.start
        taps = units.layer.taps if index is None else units.layer.taps.to(index.device)[index]
        return taps.flatten()
