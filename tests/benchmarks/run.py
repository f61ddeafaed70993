"""How fast the engine is, as JSON and as a Markdown table: `python tests/benchmarks/run.py
--help`.
"""

import sys

from headforcing.tests.benchmarks.command import main

if __name__ == "__main__":
    if sys.argv[1:] == ["gains"]:
        from headforcing.tests.benchmarks.gains import table

        sys.stdout.write(table() + "\n")
    elif sys.argv[1:] == ["measuring"]:
        from headforcing.tests.benchmarks import measuring

        sys.stdout.write(measuring.table() + "\n")
    elif sys.argv[1:] == ["picture"]:
        from headforcing.tests.benchmarks import picture

        sys.stdout.write(picture.table() + "\n")
    elif sys.argv[1:] == ["live"]:
        from headforcing.tests.benchmarks import live_prompts

        sys.stdout.write(live_prompts.table() + "\n")
    elif sys.argv[1:2] == ["live-page"]:
        from headforcing.tests.benchmarks import live_delay

        sys.stdout.write(live_delay.table(*map(int, sys.argv[2:])) + "\n")
    else:
        sys.exit(main())
