"""Number and checksums of the rows of a fit, to recognise the same rows."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.data.duplicates import hash_column
from fathomless.data.schema import Schema
from fathomless.system.errors import DataError

__all__ = ["GivenRows", "digest_rows", "fold_tensors", "hash_rows", "read_given_rows", "select_plain"]


@dataclass(frozen=True)
class GivenRows:
    """Rows that were given to a fit.

    Attributes
    ----------
    count : int
        Number of rows, including those of weight zero.
    digest : str
        Result of :func:`digest_rows` for the rows of positive weight; "" if it is not known.
    hashes : ndarray of int64, shape (N,), optional
        Result of :func:`hash_rows` for each row, and 0 for rows of weight zero; only for fits with folds.
    """

    count: int
    digest: str = ""
    hashes: npt.NDArray[np.int64] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entries of a manifest."""
        return {"rows": self.count, **({"rows_digest": self.digest} if self.digest else {})}

    def find_misplaced(
        self, folds: npt.NDArray[np.int64], hashes: npt.NDArray[np.int64], given: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return True for each of n rows of the fit that were given with folds of no row that equals it.

        Parameters
        ----------
        folds : ndarray of int64, shape (R, N)
            Folds of the rows of the fit.
        hashes : ndarray of int64, shape (n,)
            Result of :func:`hash_rows` for other rows.
        given : ndarray of int64, shape (R, n)
            Folds that were given for them.
        """
        if self.hashes is None:
            return np.zeros(len(hashes), dtype=np.bool_)
        of_fit, of_given = (
            h.view(np.uint64) + _sum_hashes(f.T, -1 - len(f)) for h, f in ((self.hashes, folds), (hashes, given))
        )
        return np.isin(hashes, self.hashes) & ~np.isin(of_given, of_fit)


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
    plain = select_plain(schema, x)
    digest = hashlib.blake2b(repr((plain.shape, z.shape)).encode(), digest_size=16)
    weights = () if weight is None or (weight == 1.0).all() else (weight,)
    for part in (plain, z, *weights):
        digest.update(np.ascontiguousarray(part, dtype=np.float64).data)
    return digest.hexdigest()


def select_plain(schema: Schema, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the features (N, D) of encoded rows that do not depend on the option `numbers`."""
    has_bins = any(column.bins is not None for column in schema.columns)
    return x[:, list(schema.plain_features)] if has_bins else x


def hash_rows(x: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return a 64-bit hash of each row of numbers (N, ...), which does not depend on other rows, shape (N,).

    Examples
    --------
    >>> a, b, c = hash_rows(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    >>> bool(a == c), bool(a == b)
    (True, False)
    """
    return _sum_hashes(x.reshape(len(x), -1), 0).view(np.int64)


def _sum_hashes(x: npt.NDArray[Any], start: int) -> npt.NDArray[np.uint64]:
    """Return the sum of the hashes of columns (N, D) with the numbers start, start + 1, ..., modulo 2**64."""
    total = np.zeros(len(x), dtype=np.uint64)
    for number, column in enumerate(x.T, start):
        total += hash_column(column, number)
    return total


def fold_tensors(rows: GivenRows | None, fold: npt.NDArray[Any] | None) -> dict[str, Tensor]:
    """Return the folds of the rows of a fit as tensors, with the hashes of the rows."""
    if fold is None:
        return {}
    hashes = None if rows is None else rows.hashes
    return {"fold": torch.from_numpy(fold), **({} if hashes is None else {"row_hashes": torch.from_numpy(hashes)})}


def read_given_rows(meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> GivenRows | None:
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
    hashes = tensors.get("row_hashes")
    if hashes is not None and (hashes.dtype != torch.int64 or hashes.shape != (rows,)):
        raise DataError(f"its hashes of {rows} rows have shape {tuple(hashes.shape)}")
    return GivenRows(rows, digest, None if hashes is None else hashes.numpy())
