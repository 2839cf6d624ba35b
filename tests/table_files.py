"""Tables as bytes in all supported compressions, and as values."""

import bz2
import gzip
import io
import lzma

import pyarrow as pa
from pyarrow import parquet

from fathomless.tables import files as tables

#: A small table.
SMALL = b"a,b\n1,2\n3,4\n"


def gzipped(data: bytes) -> bytes:
    """Compress without a time stamp, so that tests have the same names in every process."""
    return gzip.compress(data, mtime=0)


PACKED = {
    "plain": lambda text: text,
    "gz": gzipped,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda text: pa.compress(text, codec="zstd", asbytes=True),
}


def columns(found):
    """Return the values of a table by column."""
    return (found.frame if isinstance(found, tables.Table) else found).to_pydict()


def parquet_bytes(table, **options):
    """Return a table as the bytes of a Parquet file."""
    out = io.BytesIO()
    parquet.write_table(table, out, **options)
    return out.getvalue()
