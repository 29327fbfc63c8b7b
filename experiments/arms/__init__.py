"""The arms of the training experiments: what each changes and where its runs start.

`catalog` has all of them by name; the other files declare those of a paper or a task.
"""
