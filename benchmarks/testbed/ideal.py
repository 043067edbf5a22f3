"""The ideal of a cell of the testbed: how many times as fast as the ring it could be with a free control plane.

``python -m benchmarks.testbed.ideal`` prints it for all nine cells; mlfabric.twin.ideal says what is assumed.
"""

from __future__ import annotations

from mlfabric.twin.ideal import IdealCell, ideal
from mlfabric.twin.settings import COMPUTE, NETWORK, ComputeSetting, NetworkSetting

__all__ = ["ideal_ratio", "ideal_synchronous_ratio"]

PAPER_CELLS = tuple((compute, network) for compute in ("C1", "C2", "C3") for network in ("N1", "N2", "N3"))


def ideal_ratio(compute: ComputeSetting, network: NetworkSetting, tau_max: int | None, seed: int) -> float:
    """Return the ideal of asynchronous training of 30 workers over the ring.

    Args:
        compute, network: of the cell.
        tau_max: delay bound, None for none.
        seed: of stragglers and network.
    """
    return ideal(IdealCell(compute=compute, network=network, delay_bound=tau_max, seed=seed)).asynchronous_ratio


def ideal_synchronous_ratio(compute: ComputeSetting, network: NetworkSetting) -> float:
    """Return the ideal of synchronous training of 30 workers over the ring: a formula, no seed."""
    return ideal(IdealCell(compute=compute, network=network, duration_s=1.0)).synchronous_ratio


def _print_all() -> None:
    print("cell   ring s  synchronous  bound 30  no bound")
    for compute, network in PAPER_CELLS:
        cell = COMPUTE[compute], NETWORK[network]
        found = ideal(IdealCell(compute=cell[0], network=cell[1]))
        print(
            f"{compute}-{network}  {found.ring_s:6.3f}  {found.synchronous_ratio:11.2f}"
            f"  {found.asynchronous_ratio:8.2f}  {ideal_ratio(*cell, None, 0):8.2f}"
        )


if __name__ == "__main__":
    _print_all()
