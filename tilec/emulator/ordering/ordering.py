"""The order of a launch's accesses, and the checks that rest on it."""

from __future__ import annotations

from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.launch_state import LaunchState
from tilec.emulator.machine.memory import Memory
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ordering.barrier_inits import BarrierInits
from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ordering.in_flight import InFlight
from tilec.emulator.ordering.noncoherent import NoncoherentReads
from tilec.emulator.ordering.peer_reads import PeerReads
from tilec.emulator.ordering.prior_launches import PriorLaunches
from tilec.emulator.ordering.proxies import Proxies
from tilec.emulator.ordering.races import Shadow
from tilec.emulator.ordering.replicas import Replicas
from tilec.emulator.ordering.synchronise import Synchronise


class Ordering:
    """`start` begins a wave; each part says what it keeps."""

    def __init__(self, launch: LaunchState, wave: Wave, memory: Memory, faults: Recorder) -> None:
        self.clocks = Clocks(wave)
        self.shadow = Shadow(self.clocks, len(memory.data), launch.function.instructions)
        memory.on_growth.append(self.shadow.grow)
        self.in_flight = InFlight(memory, faults)
        self.barrier_inits = BarrierInits(self.clocks)
        self.proxies = Proxies(wave, self.clocks, self.shadow, self.barrier_inits, faults)
        self.synchronise = Synchronise(wave, self.clocks, self.shadow)
        self.replicas = Replicas(launch, self.shadow)
        self.prior_launches = PriorLaunches(wave, faults, launch.overlaps)
        self.peer_reads = PeerReads(memory, wave, self.clocks, faults)
        self.noncoherent = NoncoherentReads(memory, self.shadow, faults, launch.overlaps)

    def start(self, first_lane: int) -> None:
        """Starts a new wave of blocks; `first_lane` is the launch-wide number of its lane 0."""
        self.clocks.start(first_lane)
        self.in_flight.clear()
        self.barrier_inits.clear()
        self.proxies.clear()
        self.synchronise.clear()
        self.prior_launches.clear()
