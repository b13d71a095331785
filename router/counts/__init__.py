"""What the router counts: requests per version, what became of them, and the report for the service."""
