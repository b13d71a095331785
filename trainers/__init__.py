"""Training methods: the choice of a method, recipes, and job specifications.

Only two parts load torch: `trainers.job`, within the job, and `trainers.gpu_checks`, in a process of its own.
"""
