"""Signals of users: what they did with an answer, without a rating. They are found in sessions, measured against the ratings, and used."""
