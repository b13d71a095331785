"""The endpoints of model servers that the router passes on: what a request may say, what its trace holds, and how its answer streams."""
