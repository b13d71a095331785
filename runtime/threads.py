"""Thread settings of CPU-bound processes that share a machine. They are environment variables, because OpenMP reads them only at load."""

from __future__ import annotations


def threads_of(count: int) -> dict[str, str]:
    """Return the environment variables of a process that computes with `count` threads.

    Waiting threads sleep (passive policy) and do not spin. Between the many short operations of a small model, a spinning thread occupies
    the core that the other threads need. Speedup for 16 short answers of a tiny model on two cores (benchmarks/threads.py, two runs):
    3 to 15 next to one or four busy processes, 0.9 to 2 next to two busy processes, and 0.5 on an otherwise idle machine.
    MKL needs its own thread count. Source: OpenMP 5.2, OMP_WAIT_POLICY.
    """
    return {"OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count), "OMP_WAIT_POLICY": "PASSIVE"}
