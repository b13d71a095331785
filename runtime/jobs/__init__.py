"""The protocol between the service and a training job: names, files, run folders, and the members of a gang."""
