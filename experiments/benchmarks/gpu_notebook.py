# SPDX-License-Identifier: Apache-2.0
"""gpu_check: its JSON, which is whole after every check."""

import json
import sys
import time

from gpu_session import STATES, say, spoken, storable


def counts_of(session):
    states = [record["state"].partition(":")[0] for record in session.records]
    return {state: states.count(state) for state in STATES}


def write(options, head, session, seconds, status):
    """`status`: None while checks are still to come. Another's name until it is whole."""
    counts = counts_of(session)
    ran = not session.skip_all and len(session.records) > counts["skipped"]
    result = {**head, "is_a_gpu_result": options.device == "cuda" and ran,
              "seconds": round(seconds, 1), "complete": status is not None, "exit_status": status,
              "counts": counts, "checks": session.records}
    part = options.out.with_name(options.out.name + ".part")
    part.write_text(json.dumps(storable(result), indent=1) + "\n", encoding="utf-8")
    part.replace(options.out)


def summarize(options, session, seconds):
    where = "" if options.device == "cuda" else " on the CPU, which is no GPU result"
    counts = ", ".join(f"{count} {state}" for state, count in counts_of(session).items()
                       if count or state != "undecided")
    say(f"{counts}{where}; {seconds:.0f} s; {options.out}")


class Notebook:
    """The JSON as it grows. Where it cannot be written, the checks go on."""

    def __init__(self, options, begin):
        self.options = options
        self.begin = begin
        self.head = {}
        self.problem = ""

    def write(self, session, status=None):
        """False: it is not on disk."""
        try:
            write(self.options, self.head, session, time.monotonic() - self.begin, status)
            return True
        except Exception as error:  # a full disk, a folder that went away
            if not self.problem:
                self.problem = f"{self.options.out} cannot be written: {spoken(error)}"
                say(f"gpu_check: {self.problem}", sys.stderr)
            return False
