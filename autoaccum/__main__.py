"""`python -m autoaccum` is `autoaccum`."""

from autoaccum.cli import main

if __name__ == "__main__":
    main()
