"""`python -m flashgen` is the command `flashgen`."""

import sys

from flashgen.child import trusted_path

# The working folder comes first for `python -m`, and has any file that lies beside a spec.
sys.path[:] = trusted_path()

from flashgen.cli import main  # noqa: E402

main()
