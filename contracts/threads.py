"""How a process that computes on a CPU shares the machine: its environment, since OpenMP reads it once, when its library is loaded."""

from __future__ import annotations


def threads_of(count: int) -> dict[str, str]:
    """Environment of a process that computes with `count` threads beside others on the machine.

    Threads that wait for each other sleep (passive) and do not spin: between a small model's many short operations a spinning thread
    holds the very core that the one it waits for needs. Beside one or four busy processes on two cores 16 short answers of a tiny model
    came 3 to 15 times sooner, beside two from 0.9 to 2 times; alone on the machine they take twice as long (benchmarks/threads.py, two
    runs). Source: OpenMP 5.2, OMP_WAIT_POLICY; MKL counts its threads by itself.
    """
    return {"OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count), "OMP_WAIT_POLICY": "PASSIVE"}
