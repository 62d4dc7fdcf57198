"""`torchvision.datasets`, also beside a torch without CUDA."""

import sys
from typing import Any

_kept: list[Any] = []


def import_datasets() -> Any:
    """The module `torchvision.datasets`.

    The torchvision of the package index is built for CUDA. Beside a CPU-only torch its operators can't be loaded, and the
    import fails on the first that it misses, although data sets need none of them. Declared without an implementation, they
    let the import pass. Tried only after the plain import has failed: a torchvision that fits declares them itself.
    """
    try:
        import torchvision.datasets as datasets
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        import torch

        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)  # or the operators would go again
        import torchvision.datasets as datasets
    return datasets
