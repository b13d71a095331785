"""Stand-in: names and behaviour that our code meets, nothing else."""
