"""`python -m transduce` is the command."""

from transduce.cli import main

if __name__ == "__main__":
    main()
