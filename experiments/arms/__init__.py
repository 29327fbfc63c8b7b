"""The arms of the training experiments.

A file per paper or task declares treatments: what each changes in the base config. `settings` places them: it
adds task, model and initial policies.
"""
