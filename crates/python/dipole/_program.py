"""The program `dipole`."""

import os
import shutil
import sys


def path() -> str:
    """Path of the program: that of this environment, or else the one in PATH."""
    own = os.path.join(sys.prefix, "bin", "dipole")
    program = own if os.path.exists(own) else shutil.which("dipole")
    if program is None:
        raise FileNotFoundError("the program `dipole` is neither in this environment nor in PATH")
    return program
