"""`python -m octavo`: the command line, where `octavo` is not on the PATH."""

import sys

from octavo_command import main

sys.exit(main())
