"""One module per paper: the checks behind the rows of the board."""
