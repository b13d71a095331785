"""Labels of answers: scores, conflicts between raters, and the confidence that an answer is correct."""
