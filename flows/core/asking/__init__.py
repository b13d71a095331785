"""Missing right answers: which questions are worth asking reviewers or a teacher, and what their answers say. Pure."""
