"""`python -m transduce` is the command."""

from transduce.cli import main

main()
