"""Training recipes: all settings of a training run, with their meaning, range and default.

A recipe is complete, so that no setting depends on the defaults of a library version. The module is independent of the training
library; `ratchet.trainers.job` translates the settings.
"""
