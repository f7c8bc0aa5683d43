"""Order through strong accesses: release and acquire operations, and fences around relaxed ones (PTX ISA, sections 8.7, 8.8).

A write with release semantics stores a token of `Clocks`, the writer's knowledge, with its location; a read with acquire
semantics merges the token into the reader's knowledge. A fence makes earlier relaxed reads acquire and later relaxed writes
release. An atomic operation keeps the tokens of its location, because it continues their release sequence; a plain write ends
the sequence. A release or acquire has no effect outside its scope (`scopes`): on other blocks, or on other clusters.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.access import Access
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ordering.clocks import Clocks, Token
from tilec.emulator.ordering.races import Shadow
from tilec.emulator.ordering.scopes import narrower, reach_of, within

Tokens = dict[tuple[int, int], Token]
"""Tokens by the writer's block and the reach of their scope."""


class Synchronise:
    """The tokens of a launch: `released` at each memory index; `fence_tokens` by each lane's last release fence (by the
    reach of its scope), for later relaxed writes; `read_tokens` by each lane's relaxed reads, for its next acquire
    fence; `on_acquire` is called with the lane and the reach of every fence that acquires."""

    def __init__(self, wave: Wave, clocks: Clocks, shadow: Shadow) -> None:
        self.wave, self.clocks, self.shadow = wave, clocks, shadow
        self.released: dict[int, Tokens] = {}
        self.fence_tokens: dict[int, dict[int, Token]] = {}
        self.read_tokens: dict[int, Tokens] = {}
        self.on_acquire: list[Callable[[int, int], None]] = []
        shadow.strong.on_drop.append(self._end)

    def _end(self, granule: int) -> None:
        """Ends the release sequence at a granule that a plain write overwrites."""
        self.released.pop(granule << self.shadow.shift, None)

    def clear(self) -> None:
        """Starts a new wave."""
        self.released.clear()
        self.fence_tokens.clear()
        self.read_tokens.clear()

    def fence(self, frame: Frame, kind: str, scope: str = "gpu") -> None:
        """A fence by every lane of the frame under its mask."""
        clocks, reach = self.clocks, reach_of(scope, self.wave.cluster_size, self.wave.device_blocks)
        for at in frame.active():
            lane = int(frame.lanes[at])
            one = np.array([lane])
            for action in self.on_acquire if kind != "release" else ():
                action(lane, reach)
            if kind != "release" and lane in self.read_tokens:
                self._acquire(lane, self.read_tokens[lane], reach)
                if not reach:
                    del self.read_tokens[lane]
            if kind != "acquire":
                token = clocks.rows(one)[0]
                token[lane] = clocks.now
                self.fence_tokens.setdefault(lane, {})[reach] = token
        clocks.now += 1

    def _acquire(self, lane: int, published: Tokens, reach: int) -> None:
        """The lane acquires with scope `reach` the tokens whose scope contains it and whose writer its scope contains."""
        block = self._block(lane)
        for (writer, token_reach), token in published.items():
            if within(narrower(reach, token_reach), writer, block):
                self.clocks.acquire(np.array([lane]), token)

    def fenced(self, lanes: NDArray[np.int64], *, own_block: bool = False) -> Token | None:
        """What the release fences of these lanes let a relaxed signal publish, to a peer of the cluster or (`own_block`) to
        their own block; None if nothing."""
        found: Token | None = None
        for lane in lanes.tolist() if self.fence_tokens else ():
            for reach, token in self.fence_tokens.get(lane, {}).items():
                if own_block or not reach or reach >= self.wave.cluster_size:
                    found = token if found is None else np.maximum(found, token)
        return found

    def _block(self, lane: int) -> int:
        return int(self.wave.block_number[self.wave.block[lane]])

    def before_write(self, found: Access, order: str, scope: str | None, *, keep: bool = False) -> None:
        """A strong write: stores a token if it releases, directly or after a fence. `keep`: an atomic operation, which keeps
        the tokens already there."""
        clocks = self.clocks
        reach = reach_of(scope, self.wave.cluster_size, self.wave.device_blocks)
        for lane, index in zip(found.lanes.tolist(), found.index.tolist(), strict=True):
            new_tokens = [(narrower(fenced, reach), token) for fenced, token in self.fence_tokens.get(lane, {}).items()]
            if order in ("release", "acq_rel", "sc"):
                new_tokens.append((reach, clocks.release(np.array([lane]))))
            tokens = dict(self.released.get(index, {})) if keep else {}
            for token_reach, token in new_tokens:
                writer = self._block(lane), token_reach
                tokens[writer] = np.maximum(tokens[writer], token) if writer in tokens else token
            if tokens:
                self.released[index] = tokens
            else:
                self.released.pop(index, None)

    def after_read(self, found: Access, order: str, scope: str | None) -> None:
        """A strong read: acquires the location's tokens, or keeps them for the next fence."""
        reach = reach_of(scope, self.wave.cluster_size, self.wave.device_blocks)
        for lane, index in zip(found.lanes.tolist(), found.index.tolist(), strict=True):
            tokens = self.released.get(index)
            if tokens is None:
                continue
            if order in ("acquire", "acq_rel", "sc"):
                self._acquire(lane, tokens, reach)
                continue
            block = self._block(lane)
            acquirable = dict(self.read_tokens.get(lane, {}))
            for key, token in tokens.items():
                if within(narrower(reach, key[1]), key[0], block):
                    acquirable[key] = np.maximum(acquirable[key], token) if key in acquirable else token
            self.read_tokens[lane] = acquirable
