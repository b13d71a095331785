"""Training methods: the choice of a method, recipes, and job specifications.

Only two parts load torch: `ratchet.trainers.job`, within the job, and `ratchet.trainers.gpu_checks`, in a process of its own.
"""
