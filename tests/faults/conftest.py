"""What must be true after the tests of a file: no process of theirs is left."""

from collections.abc import Iterator

import pytest
from fault_help import assert_all_have_ended


@pytest.fixture(scope="module", autouse=True)
def _nothing_outlives_a_sweep() -> Iterator[None]:
    yield
    assert_all_have_ended()
