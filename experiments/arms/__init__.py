"""The arms of the training experiments: the changes of each, and its initial policies.

`catalog` has all of them by name; the other files declare those of a paper or a task.
"""
