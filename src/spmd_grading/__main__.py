"""`python -m spmd_grading NOTEBOOK ...`: the command line of `grade`."""

import sys

from .grade import main
from .reaper import be_private, hide_arguments

if __name__ == "__main__":
    sys.dont_write_bytecode = True  # what is written from now on was not written by us
    be_private()
    if any(one.startswith("--e") for one in sys.argv):  # the name of hidden checks
        hide_arguments()
    sys.exit(main())
