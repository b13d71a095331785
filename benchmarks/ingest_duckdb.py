"""What a bare engine needs for a part of the task of ingest: JSON Lines to Parquet files by day, each id once, with two masks.

`python benchmarks/ingest_duckdb.py FILE FOLDER` uses one thread. It checks nothing, keeps nothing of bad records, and is no peer of ingest;
it shows how fast the machine is.
"""

from __future__ import annotations

import sys

import duckdb

_EMAIL = "[A-Za-z0-9._+-]+@[A-Za-z0-9.-]+"
_PHONE = r"\+?[0-9][0-9 ]{7,}[0-9]"


def main(file: str, folder: str) -> None:
    """Write the records of `file` as Parquet below `folder`."""
    engine = duckdb.connect()
    engine.execute("set threads = 1")
    text = "messages[len(messages)].content"
    masked = f"regexp_replace(regexp_replace({text}, '{_EMAIL}', '[EMAIL]', 'g'), '{_PHONE}', '[PHONE]', 'g')"
    engine.execute(
        f"copy (select id, user_id, session_id, model, consent, feedback, response, {masked} as prompt, "
        f"cast(cast(timestamp as timestamp) as date) as day from read_json('{file}') "
        f"qualify row_number() over (partition by id order by timestamp) = 1) to '{folder}' (format parquet, partition_by (day))"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
