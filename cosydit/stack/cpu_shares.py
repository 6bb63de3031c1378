"""How the services of one machine without a GPU share its cores; left alone, each would take all of them."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class CpuShares:
    """Threads of each process."""

    llm: int
    token2wav: int


def cpu_shares(token2wav_servers: int = 1, cores: int | None = None) -> CpuShares:
    """Return half of the cores for the LLM and the other half for the token2wav servers; everybody has at least one.

    Args:
        token2wav_servers: how many share that half.
        cores: None counts those that this process may use.
    """
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    llm = max(1, cores // 2)
    return CpuShares(llm, max(1, (cores - llm) // token2wav_servers))
