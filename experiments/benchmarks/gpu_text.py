# SPDX-License-Identifier: Apache-2.0
"""gpu_check: what its GPT reads."""

import random


def write_text(path):
    """Made-up words that a GPT can learn something of."""
    choice = random.Random(1)
    words = ["".join(choice.choices("abcdefghijklmnopqrstuvwxyz", k=choice.randint(2, 8)))
             for _ in range(200)]
    path.write_text(" ".join(choice.choices(words, k=100_000)), encoding="ascii")
