"""What a training is to be: method, plan, search over recipes, and the form in which its result is served."""
