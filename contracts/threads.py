"""How a process that computes on a CPU shares the machine: its environment, since OpenMP reads it once, when its library is loaded."""

from __future__ import annotations


def threads_of(count: int) -> dict[str, str]:
    """Environment of a process that computes with `count` threads beside others on the machine.

    Threads that wait for each other sleep (passive) and do not spin: between a small model's many short operations a spinning thread
    holds the very core that the one it waits for needs. With two threads on two busy cores an answer took 0.4 s instead of 7.9 s, and a
    twelfth of the processor time (benchmarks/threads.py). Source: OpenMP 5.2, 21.7; MKL counts its threads by itself.
    """
    return {"OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count), "OMP_WAIT_POLICY": "PASSIVE"}
