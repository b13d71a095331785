"""The warm part of the service: it ingests, reconciles and watches every line without Prefect, and carries cycles through their steps."""
