"""The fabric's twin in virtual time: the same state machines, simulated shells, faults and a witness; pure.

``Simulation(SimulationConfig.drawn(seed)).run(events=2000)`` plays one fabric; the same seed plays the same again.
"""

from mlfabric.simulator.config import CALM, HARSH, STORMY, WITH_REPLICAS, FaultRates, SimulationConfig, Summary
from mlfabric.simulator.simulation import Simulation

__all__ = ["CALM", "HARSH", "STORMY", "WITH_REPLICAS", "FaultRates", "Simulation", "SimulationConfig", "Summary"]
