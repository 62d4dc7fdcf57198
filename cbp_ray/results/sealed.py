"""Parquet files with a checksum of the whole: a file of which any byte is another than was written is noticed."""

import hashlib
import io
import re
from typing import Any

import pyarrow
import pyarrow.parquet

NAME = b"cbp_ray_checksum"
"""Name of the checksum among the file's metadata."""
BYTES = 16
NONE = b"0" * (2 * BYTES)
"""Stands in the place of the checksum while it is computed."""
# Parquet keeps its metadata as plain text; two bytes say that a text follows, and how long it is.
PLACE = re.compile(NAME + rb"..([0-9a-f]{%d})" % len(NONE), re.DOTALL)


def seal(table: pyarrow.Table, metadata: dict[bytes, bytes], **options: Any) -> bytes:
    """A table as the content of a Parquet file that has its own checksum; `options` are those of pyarrow's writer."""
    buffer, table = io.BytesIO(), table.replace_schema_metadata(metadata)
    with pyarrow.parquet.ParquetWriter(buffer, table.schema, compression="zstd", **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({NAME: NONE})
    content = buffer.getvalue()
    start, end = _place(content)
    return content[:start] + _checksum(content, start, end) + content[end:]


def is_sealed(content: bytes) -> bool:
    """Whether all bytes are as `seal` has made them."""
    start, end = _place(content)
    return start < end and content[start:end] == _checksum(content, start, end)


def _place(content: bytes) -> tuple[int, int]:
    """Where the checksum stands: in the file's end, which is searched from its last mention on."""
    found = PLACE.match(content, max(content.rfind(NAME), 0))
    return found.span(1) if found is not None else (0, 0)


def _checksum(content: bytes, start: int, end: int) -> bytes:
    whole = hashlib.blake2b(digest_size=BYTES)
    for part in (memoryview(content)[:start], NONE, memoryview(content)[end:]):
        whole.update(part)
    return whole.hexdigest().encode()
