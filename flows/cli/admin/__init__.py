"""Commands for the ledger as a whole, the cluster, the demo and development: verify, anchor, k8s, demo, dev."""
