"""An S3 bucket in place of a shared volume: the client, and the service's side of the transfers."""
