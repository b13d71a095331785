"""Code that runs in a training pod without a shared volume: staging, download and upload."""
