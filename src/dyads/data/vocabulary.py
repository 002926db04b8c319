"""Frozen ids <-> 0..n-1."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dyads.errors import DtypeError

Codes = npt.NDArray[np.integer]

UNKNOWN = -1
"""The code of an id that is not in the vocabulary; what becomes of it is the caller's explicit policy."""


@dataclass(frozen=True)
class Vocabulary:
    """The distinct ids of one side, in order of first appearance.

    Attributes
    ----------
    ids : pyarrow.Array of shape (n,), without nulls or repetitions
    name : what the column is called, for messages
    """

    ids: pa.Array
    name: str

    @classmethod
    def of(cls, column: pa.Array, name: str) -> "tuple[Vocabulary, Codes]":
        """Collect the distinct ids of a column and encode it, in one pass."""
        encoded = column.dictionary_encode()
        return cls(encoded.dictionary, name), encoded.indices.to_numpy(zero_copy_only=False)

    def __len__(self) -> int:
        return len(self.ids)

    def with_ids(self, column: pa.Array, source: str) -> "Vocabulary":
        """The same with the ids of `column` that are not in it after its own; `source` names that for messages."""
        try:
            new = column.filter(pa.array(self.encode(column) < 0)).cast(self.ids.type)
        except (DtypeError, pa.ArrowInvalid) as error:
            raise DtypeError(
                f"The ids in {source} have type {_type_name(column.type)}, but column {self.name!r} of the data holds "
                f"{_type_name(self.ids.type)}: an id must keep its type. Convert one of them."
            ) from error
        if not len(new):
            return self
        return Vocabulary(pa.concat_arrays([self.ids, new.unique()]), self.name)

    def encode(self, column: pa.Array) -> Codes:
        """Look up each id; `UNKNOWN` where there is none. Ids of another type raise."""
        if not len(column):
            return np.empty(0, dtype=np.int32)
        column = _align(column, self.ids.type)
        if column.type != self.ids.type:
            raise DtypeError(
                f"Column {self.name!r} holds ids of type {_type_name(column.type)}, but the model was fitted on "
                f"{_type_name(self.ids.type)}: an id must keep its type. Convert the column before predicting."
            )
        found = pc.index_in(column, value_set=self.ids)
        codes: Codes = found.fill_null(UNKNOWN).to_numpy(zero_copy_only=False)
        return codes


def _align(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bring integers of another sign or timestamps of another unit to `kind`; what does not fit it becomes null."""
    if column.type == kind:
        return column
    if pa.types.is_integer(column.type) and pa.types.is_integer(kind):
        last = pa.scalar(np.iinfo(np.int64).max, pa.uint64())
        beyond = pc.less(column, 0) if kind == pa.uint64() else pc.greater(column, last)
        return pc.if_else(beyond, None, column).cast(kind)
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(kind) and column.type.tz == kind.tz:
        aligned = column.cast(kind, safe=False)
        return pc.if_else(pc.equal(aligned.cast(column.type, safe=False), column), aligned, None)
    return column


def _type_name(kind: pa.DataType) -> str:
    return {"large_string": "string", "large_binary": "bytes", "double": "float"}.get(str(kind), str(kind))
