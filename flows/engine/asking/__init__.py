"""Asks reviewers and teachers for missing right answers, and gives training sets to trainers elsewhere."""
