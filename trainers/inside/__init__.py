"""What runs inside a training job. Only here is torch loaded, and only in the process that the wrapper starts."""
