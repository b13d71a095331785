"""The demo's world: a task, simulated users and reviewers, and a script that uses the product as people would. Everything
else that runs is the product. Seeds are fixed; outcomes follow from the computation."""
