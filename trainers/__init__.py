"""Chooses a training method, holds recipes, and turns a plan into a job. Never loads torch; `trainers.inside` does, in the job."""
