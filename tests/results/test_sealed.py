"""A result file of which any byte is another than was written is noticed, wherever it is."""

import io

import numpy as np
import pyarrow
import pyarrow.parquet

from cbp_ray.results.sealed import is_sealed, seal

TABLE = pyarrow.table({"seed": np.arange(40, dtype=np.uint64), "error": np.random.default_rng(0).normal(size=40)})
METADATA = {b"cbp_ray": b'{"engine": "kernel"}'}


def test_every_byte_counts() -> None:
    content = seal(TABLE, METADATA)
    assert is_sealed(content)
    for place in range(len(content)):
        for bit in (1, 0x80):
            changed = bytearray(content)
            changed[place] ^= bit
            assert not is_sealed(bytes(changed)), place
    assert not any(is_sealed(part) for part in (b"", content[:-1], content[1:], content + b"\0", content * 2))


def test_it_is_an_ordinary_file_with_the_table_and_its_metadata() -> None:
    found = pyarrow.parquet.read_table(io.BytesIO(seal(TABLE, METADATA)))
    assert found.equals(TABLE)
    assert found.schema.metadata[b"cbp_ray"] == METADATA[b"cbp_ray"]
    # What others write has no checksum.
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(TABLE, buffer)
    assert not is_sealed(buffer.getvalue())
