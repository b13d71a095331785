"""The task of `ingest_duckdb.py` as people write it with pandas: JSON Lines to Parquet files by day, each id once, with two masks.

`python benchmarks/ingest_pandas.py FILE FOLDER`
"""

from __future__ import annotations

import sys

import pandas as pd

_EMAIL = r"[A-Za-z0-9._+-]+@[A-Za-z0-9.-]+"
_PHONE = r"\+?[0-9][0-9 ]{7,}[0-9]"


def main(file: str, folder: str) -> None:
    """Write the records of `file` as Parquet below `folder`."""
    frame = pd.read_json(file, lines=True)
    frame["prompt"] = frame["messages"].map(lambda messages: messages[-1]["content"])
    for pattern, mark in ((_EMAIL, "[EMAIL]"), (_PHONE, "[PHONE]")):
        frame["prompt"] = frame["prompt"].str.replace(pattern, mark, regex=True)
    frame["day"] = pd.to_datetime(frame["timestamp"], format="ISO8601").dt.strftime("%Y-%m-%d")
    frame = frame.drop_duplicates("id").drop(columns=["messages", "timestamp"])
    frame.to_parquet(folder, partition_cols=["day"])


if __name__ == "__main__":
    main(*sys.argv[1:])
