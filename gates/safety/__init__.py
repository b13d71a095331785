"""The prompts of the check `safety`, the rules for refusals, and what both models answer."""
