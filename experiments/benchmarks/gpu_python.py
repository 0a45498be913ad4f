# SPDX-License-Identifier: Apache-2.0
"""gpu_check: CUDA's libraries that another Python's pip installed."""

import json
import os
import subprocess

VARIABLE = "PACELINE_CUDA_LIBRARIES"
LOOK_S = 20

# Runs in that Python, which need not be this one nor be activated.
LOOK = """
import glob, json, os, site, sys, sysconfig
places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
try:
    places.append(site.getusersitepackages())
except Exception:
    pass
found = []
for place in filter(None, places + sys.path):
    for folder in sorted(glob.glob(os.path.join(glob.escape(place), "nvidia", "*", "lib"))):
        if folder not in found:
            found.append(folder)
print(json.dumps(found))
"""


def library_folders(python):
    """{PACELINE_CUDA_LIBRARIES: the nvidia/*/lib folders of that Python}.

    Empty where the variable is set already, or where there are none.
    """
    if os.environ.get(VARIABLE):
        return {}
    try:
        done = subprocess.run([python, "-c", LOOK], capture_output=True, text=True, timeout=LOOK_S,
                              check=True, stdin=subprocess.DEVNULL)
        folders = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}  # a --python that does not run is reported by the checks that need it
    folders = [folder for folder in folders if ":" not in folder]
    return {VARIABLE: ":".join(folders)} if folders else {}
