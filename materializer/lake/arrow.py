"""pyarrow without pandas. pyarrow loads pandas for the first array that it builds, if it is installed; that takes 42 MB and half a second.

MLflow brings pandas. The lake needs none of it. A scorer of another package may still import and use it.
"""

from __future__ import annotations

import os

from ratchet.runtime.hidden_package import hidden

# Arrow's own pool gives memory back to the system and takes it again for each batch. With that of the C library, an ingest takes a
# twentieth less time and a tenth less memory.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

with hidden("pandas"):
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.dataset
    import pyarrow.parquet as pq

    pa.array(["pyarrow decides at the first array whether there is pandas"])

__all__ = ["pa", "pq"]
