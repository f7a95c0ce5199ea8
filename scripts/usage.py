# SPDX-License-Identifier: Apache-2.0
"""For the scripts in Python that have no parser: what usage.sh does for those in shell."""
import os
import sys


def begin(text, options=()):
    """With -h or --help prints the script's text and ends it. Ends it at an option that is none of these, too."""
    words = sys.argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        print(text.strip())
        sys.exit(0)
    for word in words:
        if word.startswith("-") and word.split("=")[0] not in options:
            print(f"{os.path.basename(sys.argv[0])}: unknown option {word}; --help says more", file=sys.stderr)
            sys.exit(2)
