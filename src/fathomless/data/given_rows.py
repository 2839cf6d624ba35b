"""Number and checksum of the rows of a fit, to recognise the same rows in the same order."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.data.schema import Schema
from fathomless.system.errors import DataError

__all__ = ["GivenRows", "digest_rows", "read_given_rows"]


@dataclass(frozen=True)
class GivenRows:
    """Rows that were given to a fit.

    Attributes
    ----------
    count : int
        Number of rows, including those of weight zero.
    digest : str
        Result of :func:`digest_rows` for the rows of positive weight; "" if it is not known.
    """

    count: int
    digest: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the entries of a manifest."""
        return {"rows": self.count, **({"rows_digest": self.digest} if self.digest else {})}


def digest_rows(
    schema: Schema, x: npt.NDArray[Any], z: npt.NDArray[Any], weight: npt.NDArray[Any] | None = None
) -> str:
    """Return a checksum of encoded rows in their order.

    Parameters
    ----------
    schema : Schema
        Encoding of the columns. Bins are not part of the checksum, so that it does not depend on the option `numbers`.
    x : ndarray, shape (N, D)
        Encoded columns.
    z : ndarray, shape (N,) or (N, T)
        Encoded targets.
    weight : ndarray, shape (N,), optional
        Sample weights; equal weights of one are as none.
    """
    has_bins = any(column.bins is not None for column in schema.columns)
    plain = x[:, list(schema.plain_features)] if has_bins else x
    digest = hashlib.blake2b(repr((plain.shape, z.shape)).encode(), digest_size=16)
    weights = () if weight is None or (weight == 1.0).all() else (weight,)
    for part in (plain, z, *weights):
        digest.update(np.ascontiguousarray(part, dtype=np.float64).data)
    return digest.hexdigest()


def read_given_rows(meta: Mapping[str, Any]) -> GivenRows | None:
    """Return the rows of a manifest; None for one of an older version, without them.

    Raises
    ------
    DataError
        If the entries are damaged.
    """
    rows, digest = meta.get("rows"), meta.get("rows_digest", "")
    if rows is None:
        return None
    if type(rows) is not int or rows < 1:
        raise DataError(f"its number of rows is {rows!r:.40}")
    if not isinstance(digest, str) or not re.fullmatch("([0-9a-f]{32})?", digest):
        raise DataError(f"its checksum of the rows is {digest!r:.40}")
    return GivenRows(rows, digest)
