"""`python -m simlab`, where the package is not installed."""

from simlab.cli import main

main()
