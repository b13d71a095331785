"""Code that runs inside a training job. Only this package loads torch, and only in the process that the supervisor starts."""
