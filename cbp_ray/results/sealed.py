"""Parquet files with a checksum of the whole: a file of which any byte is another than was written is noticed."""

import hashlib
import io
import re
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

NAME = b"cbp_ray_checksum"
"""Name of the checksum among the file's metadata."""
BYTES = 16
NONE = b"0" * (2 * BYTES)
"""Stands in the place of the checksum while it is computed."""
MOST_BYTES = 2**30
"""Most bytes of a table in memory. A few bytes of Parquet may hold a text many times, or a page of zeros."""
KINDS = ("BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE", "BYTE_ARRAY")
"""Kinds of columns that the program writes, in Parquet's words."""
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


def read_sealed(content: bytes, most_rows: int) -> pyarrow.Table:
    """The table of a sealed file, every text once and not in every row that has it.

    Raises:
      ValueError: if a byte is not as it was written, or if it says that it holds more than fits.
      pyarrow.ArrowException: if it is no Parquet.
    """
    if not is_sealed(content):
        raise ValueError("other bytes than were written")
    about = pyarrow.parquet.read_metadata(pyarrow.BufferReader(content))
    columns = [about.schema.column(number) for number in range(about.num_columns)]
    if about.num_rows > most_rows:
        raise ValueError(f"{about.num_rows:,} rows, of at most {most_rows:,}")
    if any(each.physical_type not in KINDS or each.max_repetition_level or each.path != each.name for each in columns):
        raise ValueError("columns of another kind")
    unpacked = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    if max(unpacked, about.num_rows * about.num_columns * 8) > MOST_BYTES:
        raise ValueError(f"{about.num_rows:,} rows of {about.num_columns:,} columns, more than fit")
    texts = [each.path for each in columns if each.physical_type == "BYTE_ARRAY"]
    return pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content), read_dictionary=texts).read()


def spelt_out(table: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    """The same table with the columns of a schema, texts in every row that has them.

    Raises:
      ValueError: if it does not fit.
    """
    chunks = [chunk for column in table.columns if pyarrow.types.is_dictionary(column.type) for chunk in column.chunks]
    lengths = (pyarrow.compute.binary_length(chunk.dictionary).take(chunk.indices) for chunk in chunks)
    if sum(pyarrow.compute.sum(each).as_py() or 0 for each in lengths) > MOST_BYTES:
        raise ValueError("texts that are longer than fits")
    return table.cast(schema)


def _place(content: bytes) -> tuple[int, int]:
    """Where the checksum stands: in the file's end, which is searched from its last mention on."""
    found = PLACE.match(content, max(content.rfind(NAME), 0))
    return found.span(1) if found is not None else (0, 0)


def _checksum(content: bytes, start: int, end: int) -> bytes:
    whole = hashlib.blake2b(digest_size=BYTES)
    for part in (memoryview(content)[:start], NONE, memoryview(content)[end:]):
        whole.update(part)
    return whole.hexdigest().encode()
